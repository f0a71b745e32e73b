"""What a checkpoint is to an architecture: tensors by name, and how to read each.

Tensors go by GGUF's names ("blk.0.attn_q.weight") whatever the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from .config import ModelConfig
from .errors import ModelError
from .reading import Part
from .vocabulary import Vocabulary

Shape = tuple[int, ...]
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Blocks:
    """A matrix as it is stored. type: by GGUF's name. shape: [rows, bytes of a row].

    ``parts`` fills a uint8 tensor of that shape.
    """

    type: str
    shape: Shape
    parts: Callable[[torch.Tensor], Iterable[Part]]


def stacked(path: Path, shapes: Mapping[str, Shape]) -> Shape:
    """The shape of tensors of one shape, by name, one above the other. Raises ModelError."""
    (first, shape), *others = shapes.items()
    for name, other in others:
        if other != shape:
            raise ModelError(
                f"{path}: tensor '{name}' has shape {list(other)} but '{first}' {list(shape)}:"
                " the files do not belong together, fetch them again"
            )
    return (len(shapes), *shape)


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

    def blocks(self, name: str) -> Blocks | None:
        """A matrix, or all rows of a stack of them; None in formats without blocks."""

    def parts(self, name: str, out: torch.Tensor) -> Iterable[Part]:
        """What converts the tensor into ``out``: same shape, any float dtype, any device."""
