"""Reads a checkpoint's tensors into their places."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from pkvchat.kernels.products.linear import LinearTypes
from pkvchat.kernels.products.packed import PackedLinear
from pkvchat.kernels.products.routed import Experts, packed_experts, quantised_experts
from pkvchat.kernels.progress import Progress

from .checkpoint import Checkpoint
from .reading import Part, PartRunner
from .weight_plan import Product, RawMatrices, Table, WeightPlan


class WeightReader(WeightPlan):
    """A WeightPlan whose tensors get their weights: those of products at once, the others by
    ``finish``.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        types: LinearTypes,
        progress: Progress,
    ) -> None:
        super().__init__(checkpoint, device, dtype, types)
        self._place, self._progress = device, progress
        self._runner = PartRunner(device)
        self._total = sum(map(checkpoint.nbytes, checkpoint.shapes))
        self._done = 0

    def finish(self) -> None:
        self._runner.wait()
        super().finish()
        if self.device.type == "cuda":
            from pkvchat.kernels.policy.measure_products import choose_products

            self._progress("measuring products", 0, 0)
            choose_products(self.linears)

    def _fill(
        self, name: str, out: torch.Tensor, fill: Callable[[torch.Tensor], Iterable[Part]]
    ) -> None:
        super()._fill(name, out, fill)
        self._runner.submit(fill(out))
        self._done += self.checkpoint.nbytes(name)
        self._progress("reading the weights", self._done, self._total)

    def _packed(self, blocks: RawMatrices, bias: torch.Tensor | None = None) -> Product:
        self._runner.wait()
        return PackedLinear(blocks, bias, types=self.types)

    def _quantised(
        self, blocks: RawMatrices, width: int, bias: torch.Tensor | None = None
    ) -> Table:
        self._runner.wait()
        from pkvchat.kernels.products.quant_linear import QuantLinear  # needs Triton

        return QuantLinear(blocks, width, bias)

    def _stored_experts(self, kind: str, raw: torch.Tensor, rows: int) -> Experts:
        self._runner.wait()
        if self._on_cpu:
            return packed_experts(kind, raw, rows, self.types)
        return quantised_experts(kind, raw, rows)
