"""How each tensor of a checkpoint will be kept: decided, checked and counted before any is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import torch

from pkvchat.kernels.products.linear import Linear, LinearTypes
from pkvchat.kernels.products.packed import BITS as PACKED_BITS
from pkvchat.kernels.products.packed import packed_nbytes
from pkvchat.kernels.products.quant_formats import TYPES as QUANT_TYPES
from pkvchat.kernels.products.routed import Experts, dense_experts

from .checkpoint import FLOATS, Checkpoint, Shape
from .errors import ModelError
from .reading import Part

RawMatrices = Sequence[tuple[str, torch.Tensor]]  # type and stored rows [rows, row_bytes] uint8
QUANT_BITS = {name: kind.field_bits + kind.high_bits for name, kind in QUANT_TYPES.items()}


class Product(Protocol):
    """What a weight matrix is to a block: linear.Linear, or one whose weights stay quantised."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor: ...


class Table(Product, Protocol):
    """A product whose weight's rows can be looked up."""

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor: ...


class WeightPlan:
    """Hands each tensor out once, in its final dtype, after a look at its shape; but empty.

    A Decoder made of it shows what the checkpoint lacks and what it will take; ``WeightReader`` is
    the one with weights. Methods raise ModelError.
    """

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, types: LinearTypes
    ) -> None:
        """dtype: of norms, biases and activations; types: of matrices."""
        self.checkpoint, self.device, self.dtype, self.types = checkpoint, device, dtype, types
        self.nbytes = 0  # of everything handed out, as a step for few rows reads it
        self.expert_nbytes = 0  # of those, in routed experts
        self.held = 0  # with the copies for many rows
        self.packed: set[str] = set()  # quant types that products read as they are
        self.linears: list[Linear] = []  # those that are not quantised
        self._widened: set[str] = set()  # quant types that had to be dequantised
        self._taken: set[str] = set()
        self._place = torch.device("meta")

    @property
    def note(self) -> str:
        """ "" or one line about weights that take more memory than in their file."""
        if not self._widened:
            return ""
        kinds, dtype = ", ".join(sorted(self._widened)), str(self.types.weight)
        return (
            f"{kinds} weights are held as {dtype.removeprefix('torch.')}: no kernel here multiplies"
            " them quantised"
        )

    def vector(self, name: str, size: int) -> torch.Tensor:
        """A norm's weight, [size]."""
        return self._dense({name: (size,)}, self.dtype)

    def table(self, name: str, rows: int, width: int) -> Table:
        """A row a token: embeddings, logits. Never packed on CPU, where products so have 8 bits."""
        matrix = {f"{name}.weight": (rows, width)}
        if not self._on_cpu and (blocks := self._blocks(matrix)):
            return self._quantised(blocks, width)
        return self._linear(self._dense(matrix, self.types.weight))

    def linear(self, parts: Mapping[str, int], width: int, *, bias: bool = False) -> Product:
        """One product of several: ``parts`` gives names (less ".weight") and their output rows."""
        added = None
        if bias:
            biases = {f"{name}.bias": (rows,) for name, rows in parts.items()}
            added = self._dense(biases, self.types.weight)
        matrices = {f"{name}.weight": (rows, width) for name, rows in parts.items()}
        if blocks := self._blocks(matrices):
            return self._product(blocks, width, added)
        return self._linear(self._dense(matrices, self.types.weight), added)

    def experts(self, name: str, count: int, rows: int, width: int) -> Experts:
        """Of the tensor [count, rows, width]."""
        tensor = {f"{name}.weight": (count, rows, width)}
        if blocks := self._blocks(tensor):
            ((kind, raw),) = blocks
            self.expert_nbytes += raw.nbytes
            return self._stored_experts(kind, raw, rows)
        weight = self._dense(tensor, self.types.weight)
        self.expert_nbytes += weight.nbytes
        return dense_experts(weight, self.types)

    def finish(self) -> None:
        """To be called after the last one: are there tensors that the model has no place for?"""
        left = sorted(set(self.checkpoint.shapes) - self._taken)
        if left:
            shown = ", ".join(f"'{name}' {list(self.checkpoint.shapes[name])}" for name in left[:3])
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise ModelError(
                f"{self.checkpoint.path}: no place for tensors {shown}{more}:"
                " this variant of the architecture is not supported, try another model"
            )

    def _linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        self.linears.append(Linear(weight, bias, types=self.types))
        return self.linears[-1]

    # --- what WeightReader does for real ---------------------------------------------------------

    def _fill(
        self, name: str, out: torch.Tensor, fill: Callable[[torch.Tensor], Iterable[Part]]
    ) -> None:
        """Let ``fill`` read tensor ``name`` into ``out``."""
        self._taken.add(name)

    def _packed(self, blocks: RawMatrices, bias: torch.Tensor | None = None) -> Product:
        """A product on CPU whose matrices stay quantised."""
        return Linear(torch.empty(0, device=self._place), types=self.types)

    def _quantised(
        self, blocks: RawMatrices, width: int, bias: torch.Tensor | None = None
    ) -> Table:
        """The same on a GPU."""
        return Linear(torch.empty(0, width, device=self._place), types=self.types)

    def _stored_experts(self, kind: str, raw: torch.Tensor, rows: int) -> Experts:
        """Of one matrix an expert, ``rows`` high, which stay quantised."""
        return Experts()

    # --- decisions -------------------------------------------------------------------------------

    def _product(
        self, blocks: RawMatrices, width: int, bias: torch.Tensor | None = None
    ) -> Product:
        return self._packed(blocks, bias) if self._on_cpu else self._quantised(blocks, width, bias)

    @property
    def _on_cpu(self) -> bool:
        return self.device.type == "cpu"

    def _dense(self, parts: Mapping[str, Shape], dtype: torch.dtype) -> torch.Tensor:
        """The tensors of ``parts`` one after the other along dimension 0.

        Allocated once and filled part by part, so that nothing is held twice.
        """
        for name, shape in parts.items():
            self._check(name, shape)
        rows = [shape[0] for shape in parts.values()]
        inner = next(iter(parts.values()))[1:]
        out = torch.empty((sum(rows), *inner), dtype=dtype, device=self._place)
        for name, part in zip(parts, torch.split(out, rows), strict=True):
            self._fill(name, part, partial(self.checkpoint.parts, name))
        self.nbytes += out.nbytes
        self.held += out.nbytes
        return out

    def _blocks(self, matrices: Mapping[str, Shape]) -> list[tuple[str, torch.Tensor]]:
        """Type and stored rows of all ``matrices``, or [] where products can't read one so."""
        for name, shape in matrices.items():
            self._check(name, shape)
        bits = PACKED_BITS if self._on_cpu else QUANT_BITS
        stored = {name: blocks for name in matrices if (blocks := self.checkpoint.blocks(name))}
        kinds = {blocks.type for blocks in stored.values()}
        if any(bits.get(kind, math.inf) > self.types.packed_bits for kind in kinds):
            if not self._on_cpu and self.types.packed_bits:
                self._widened |= kinds - bits.keys() - FLOATS.keys()
            return []
        self.packed |= kinds
        found = []
        for name, blocks in stored.items():
            raw = torch.empty(blocks.shape, dtype=torch.uint8, device=self._place)
            self._fill(name, raw, blocks.parts)
            found.append((blocks.type, raw))
        self._count_packed(matrices, found)
        return found

    def _count_packed(self, matrices: Mapping[str, Shape], found: RawMatrices) -> None:
        nbytes = sum(raw.nbytes for _, raw in found)
        self.nbytes += nbytes
        if self._on_cpu and found:
            elements = sum(map(math.prod, matrices.values()))
            nbytes = packed_nbytes([kind for kind, _ in found], elements, dense=self.types.dense)
        self.held += nbytes

    def _check(self, name: str, shape: Shape) -> None:
        found = self.checkpoint.shapes.get(name)
        if found is None:
            raise ModelError(
                f"{self.checkpoint.path}: tensor '{name}' {list(shape)} is missing:"
                " the checkpoint is incomplete, fetch it again"
            )
        if found != shape:
            raise ModelError(
                f"{self.checkpoint.path}: tensor '{name}' has shape {list(found)} but the model's"
                f" configuration says {list(shape)}: the files do not belong together, fetch them"
                " again"
            )
