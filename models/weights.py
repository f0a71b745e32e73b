"""What a checkpoint is to an architecture: named tensors, read one at a time into their place.

Tensors go by GGUF's names ("blk.0.attn_q.weight") whatever the format.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from pkvchat.kernels.linear import Linear, LinearTypes
from pkvchat.kernels.packed import BITS as PACKED_BITS
from pkvchat.kernels.packed import PackedLinear
from pkvchat.kernels.quant_formats import TYPES as QUANT_TYPES

from .config import ModelConfig
from .errors import ModelError
from .reading import Part, PartRunner
from .vocabulary import Vocabulary

Progress = Callable[[str, int, int], None]  # stage, done, total (0 where unknown)
Shape = tuple[int, ...]
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
QUANT_BITS = {name: kind.field_bits + kind.high_bits for name, kind in QUANT_TYPES.items()}


class Product(Protocol):
    """What a weight matrix is to a block: linear.Linear, or one whose weights stay quantised."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor: ...


@dataclass(frozen=True)
class Blocks:
    """A matrix as it is stored. type: by GGUF's name. shape: [rows, bytes of a row].

    ``parts`` fills a uint8 tensor of that shape.
    """

    type: str
    shape: Shape
    parts: Callable[[torch.Tensor], Iterable[Part]]


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
        self._runner = PartRunner(device)
        self._total = sum(checkpoint.nbytes(name) for name in checkpoint.shapes)
        self._done = 0
        self._taken: set[str] = set()
        self.packed: set[str] = set()  # quant types that products read as they are
        self._widened: set[str] = set()  # quant types that had to be dequantised

    @property
    def note(self) -> str:
        """ "" or one line about weights that take more memory than in their file."""
        if not self._widened:
            return ""
        kinds, dtype = (
            ", ".join(sorted(self._widened)),
            str(self.types.weight).removeprefix("torch."),
        )
        return f"{kinds} weights are held as {dtype}: no kernel here multiplies them quantised"

    def bytes_needed(self) -> int:
        """About what all weights will take, before any is read."""
        total = 0
        for name, shape in self.checkpoint.shapes.items():
            stored, elements = self.checkpoint.nbytes(name), math.prod(shape)
            packed = stored * 8 <= elements * (self.types.packed_bits + 1)  # its scales: a bit more
            total += stored if packed else 0
            if not packed or (self.device.type == "cpu" and self.types.dense):
                total += elements * self.types.weight.itemsize
        return total

    def check_fits(self, memory: int) -> None:
        """memory: bytes free on the device. Raises ModelError."""
        if (needed := self.bytes_needed()) > memory:
            raise ModelError(
                f"{self.checkpoint.path}: the weights need {needed / 1e9:.2g} GB on {self.device},"
                f" {memory / 1e9:.2g} GB are free: close other programs, or choose a smaller model"
                " or quantisation"
            )

    def vector(self, name: str, size: int) -> torch.Tensor:
        """A norm's weight, [size]."""
        return self._stack({name: (size,)}, self.dtype)

    def linear(
        self, parts: Mapping[str, int], width: int, *, bias: bool = False, dense: bool = False
    ) -> Product:
        """One product of several: ``parts`` gives names (less ".weight") and their output rows.

        dense: not packed on CPU, for tables and for logits: the packed product has 8 bits.
        """
        added = None
        if bias:
            biases = {f"{name}.bias": (rows,) for name, rows in parts.items()}
            added = self._stack(biases, self.types.weight)
        matrices = {f"{name}.weight": (rows, width) for name, rows in parts.items()}
        on_cpu = self.device.type == "cpu"
        blocks = [] if dense and on_cpu else self._blocks(matrices)
        if blocks and on_cpu:
            return PackedLinear(blocks, added, types=self.types)
        if blocks:
            return self._quantised(blocks, width, added)
        return Linear(self._stack(matrices, self.types.weight), added, types=self.types)

    def _quantised(
        self, blocks: list[tuple[str, torch.Tensor]], width: int, bias: torch.Tensor | None = None
    ) -> Product:
        from pkvchat.kernels.quant_linear import QuantLinear  # needs Triton

        return QuantLinear(blocks, width, bias)

    def _blocks(self, matrices: Mapping[str, Shape]) -> list[tuple[str, torch.Tensor]]:
        """Type and stored blocks of all ``matrices`` where they can stay as they are, else []."""
        found = []
        for name, blocks in self._packable(matrices).items():
            out = torch.empty(blocks.shape, dtype=torch.uint8, device=self.device)
            self._runner.submit(blocks.parts(out))
            found.append((blocks.type, out))
            self._count(name, out.nbytes)
        self._runner.wait()
        return found

    def _packable(self, matrices: Mapping[str, Shape]) -> dict[str, Blocks]:
        """The blocks of all ``matrices``, or {} where products can't read one of them so."""
        for name, shape in matrices.items():
            self._check(name, shape)
        on_cpu = self.device.type == "cpu"
        bits = PACKED_BITS if on_cpu else QUANT_BITS
        stored = {n: blocks for n in matrices if (blocks := self.checkpoint.blocks(n))}
        kinds = {blocks.type for blocks in stored.values()}
        if any(bits.get(kind, math.inf) > self.types.packed_bits for kind in kinds):
            if not on_cpu and self.types.packed_bits:
                self._widened |= kinds - bits.keys() - FLOATS.keys()
            return {}
        self.packed |= kinds
        return stored

    def experts(self, name: str, count: int, rows: int, width: int) -> Sequence[Product]:
        """The tensor [count, rows, width] as one product an expert."""
        tensor = {f"{name}.weight": (count, rows, width)}
        if self.device.type == "cuda" and (blocks := self._blocks(tensor)):
            ((kind, raw),) = blocks
            return [self._quantised([(kind, expert)], width) for expert in raw.split(rows)]
        weight = self._stack(tensor, self.types.weight)
        return [Linear(expert, types=self.types) for expert in weight]

    def _stack(self, parts: Mapping[str, Shape], dtype: torch.dtype) -> torch.Tensor:
        """The tensors of ``parts`` one after the other along dimension 0."""
        for name, shape in parts.items():
            self._check(name, shape)
        rows = [shape[0] for shape in parts.values()]
        inner = next(iter(parts.values()))[1:]
        out = torch.empty((sum(rows), *inner), dtype=dtype, device=self.device)
        for name, part in zip(parts, torch.split(out, rows), strict=True):
            self._runner.submit(self.checkpoint.parts(name, part))
            self._count(name, part.nbytes)
        return out

    def _count(self, name: str, nbytes: int) -> None:
        self._taken.add(name)
        self.nbytes += nbytes
        self._done += self.checkpoint.nbytes(name)
        self.progress("weights", self._done, self._total)

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
        """Wait until all is read. Raises ModelError if that failed, or if the checkpoint holds
        tensors that the model has no place for.
        """
        self._runner.wait()
        left = sorted(set(self.checkpoint.shapes) - self._taken)
        if left:
            shown = ", ".join(f"'{name}' {list(self.checkpoint.shapes[name])}" for name in left[:3])
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise ModelError(
                f"{self.checkpoint.path}: no place for tensors {shown}{more}:"
                " this variant of the architecture is not supported, try another model"
            )
