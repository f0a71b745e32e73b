"""What split and workqueue share in Triton: where they run, partial states, compiled shapes."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from ..launch_triton import BoundKernel
from .batch import AttentionShape, LayerSpec
from .merge_triton import allocate_states
from .paged_strategy import PagedStrategy
from .strategy import StrategyUnavailable
from .tile_config import KernelShape, TileConfig, power_of_two, tile_config

_MAX_HEAD_DIM = 256


@dataclass(frozen=True)
class Launches:
    """A layer's two kernels, bound to what stays the same from layer to layer."""

    attend: BoundKernel
    attend_grid: tuple[int, ...]
    merge: BoundKernel
    merge_grid: tuple[int, ...]


class TritonStrategy(PagedStrategy):
    """Two launches a layer, which a CUDA graph may hold. Rows of length 0 give zeros."""

    capturable = True

    def __init__(self, shape: AttentionShape, config: TileConfig | None = None) -> None:
        super().__init__(shape)
        if reason := _why_not(shape):
            raise StrategyUnavailable(f"{self.name} {reason}")
        self.config = config or tile_config(shape)
        self._states = allocate_states(2 * self.config.num_programs, shape)
        self._bound: dict[tuple[LayerSpec, bool, int], Launches] = {}

    def _launch(
        self,
        q: torch.Tensor,
        kv_layer: torch.Tensor,
        out: torch.Tensor,
        spec: LayerSpec,
        overlap: bool,
    ) -> None:
        """overlap: with the kernel in front."""
        batch = self._batch
        assert batch is not None, "plan() comes first"
        key = spec, overlap, len(batch)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = self._bind(*key)
        table, lens = batch.block_table, batch.seq_lens
        layer = q, kv_layer, spec.sinks, out
        bound.attend(bound.attend_grid, *layer, table, table.stride(0), lens)
        bound.merge(bound.merge_grid, out, lens)

    @abstractmethod
    def _bind(self, spec: LayerSpec, overlap: bool, rows: int) -> Launches:
        """All but ``spec.sinks``, in which equal specs may differ. rows: of the batch."""

    def _compiled(self, spec: LayerSpec, rows: int) -> KernelShape:
        return KernelShape.of(self.shape, self.config, spec.softcap > 0, rows)


def _why_not(shape: AttentionShape) -> str:
    """ "" where the kernels can run."""
    if shape.head_dim > _MAX_HEAD_DIM:
        return f"takes head_dim up to {_MAX_HEAD_DIM}, not {shape.head_dim}"
    if shape.page_size != power_of_two(shape.page_size):
        return f"takes pages of a power of two of tokens, not {shape.page_size}"
    if shape.kv_dtype == torch.float8_e4m3fn and shape.device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(shape.device)
        if (major, minor) < (8, 9):
            return f"needs compute capability 8.9 for fp8 KV, and this device has {major}.{minor}"
    return ""
