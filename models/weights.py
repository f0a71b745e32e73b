"""What a checkpoint is to an architecture: named tensors, read one at a time into their place.

Tensors go by GGUF's names ("blk.0.attn_q.weight") whatever the format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch

from pkvchat.kernels.linear import Linear, LinearTypes

from .config import ModelConfig
from .errors import ModelError
from .vocabulary import Vocabulary

Progress = Callable[[str, int, int], None]  # stage, done, total (0 where unknown)
Shape = tuple[int, ...]


class Checkpoint(Protocol):
    """Weights on disk. ``shapes``: every tensor's, by GGUF name, rows first."""

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def shapes(self) -> Mapping[str, Shape]: ...

    def vocabulary(self) -> Vocabulary:
        """Its tokenizer and chat template."""

    def nbytes(self, name: str) -> int:
        """Bytes of the tensor as stored."""

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Convert the tensor into ``out``: same shape, any float dtype, any device."""


class WeightReader:
    """Hands each tensor out once, in its final dtype and place, and checks its shape.

    A matrix is allocated in its final dtype and filled part by part, so that nothing is held twice.
    dtype: of norms, biases and activations; types: of matrices.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        types: LinearTypes,
        progress: Progress,
    ) -> None:
        self.checkpoint, self.device, self.dtype, self.types = checkpoint, device, dtype, types
        self.progress = progress
        self.nbytes = 0  # of everything handed out
        self._total = sum(checkpoint.nbytes(name) for name in checkpoint.shapes)
        self._done = 0
        self._taken: set[str] = set()

    def vector(self, name: str, size: int) -> torch.Tensor:
        """A norm's weight, [size]."""
        return self._stack({name: (size,)}, self.dtype)

    def linear(self, parts: Mapping[str, int], width: int, *, bias: bool = False) -> Linear:
        """One product of several: ``parts`` gives names (less ".weight") and their output rows."""
        weight = self._stack(
            {f"{name}.weight": (rows, width) for name, rows in parts.items()}, self.types.weight
        )
        added = None
        if bias:
            added = self._stack(
                {f"{name}.bias": (rows,) for name, rows in parts.items()}, self.types.weight
            )
        return Linear(weight, added, types=self.types)

    def experts(self, name: str, count: int, rows: int, width: int) -> list[Linear]:
        """The tensor [count, rows, width] as one product an expert."""
        weight = self._stack({f"{name}.weight": (count, rows, width)}, self.types.weight)
        return [Linear(expert, types=self.types) for expert in weight]

    def _stack(self, parts: Mapping[str, Shape], dtype: torch.dtype) -> torch.Tensor:
        """The tensors of ``parts`` one after the other along dimension 0."""
        for name, shape in parts.items():
            self._check(name, shape)
        rows = [shape[0] for shape in parts.values()]
        inner = next(iter(parts.values()))[1:]
        out = torch.empty((sum(rows), *inner), dtype=dtype, device=self.device)
        for name, part in zip(parts, torch.split(out, rows), strict=True):
            self.checkpoint.read_into(name, part)
            self._taken.add(name)
            self._done += self.checkpoint.nbytes(name)
            self.progress("weights", self._done, self._total)
        self.nbytes += out.nbytes
        return out

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

    def finish(self) -> None:
        """Raises ModelError if the checkpoint holds tensors that the model has no place for."""
        left = sorted(set(self.checkpoint.shapes) - self._taken)
        if left:
            shown = ", ".join(f"'{name}' {list(self.checkpoint.shapes[name])}" for name in left[:3])
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise ModelError(
                f"{self.checkpoint.path}: no place for tensors {shown}{more}:"
                " this variant of the architecture is not supported, try another model"
            )
