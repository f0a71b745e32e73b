"""Whether an engine's output is right, before its time is worth anything."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pkvchat.kernels.attention.batch import AttentionShape, DecodeBatch, LayerSpec
from pkvchat.kernels.attention.gather import Gather, Scratch
from pkvchat.kernels.attention.tasks import Task

from ..errors import ChatError

# Of max |e| and mean |e|: the paper's for float16; the others in proportion to their precision.
_TOLERANCE = {
    torch.float32: (1e-4, 1e-5),
    torch.float16: (2e-3, 3e-4),
    torch.bfloat16: (1.6e-2, 2.4e-3),
}
# Means over many random values are small: of long rows an error must be small beside them, too.
_RELATIVE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_ROWS = 4


@dataclass(frozen=True)
class Errors:
    """Against float64, over the rows that were compared. relative: mean |e| / mean |expected|."""

    max: float
    mean: float
    relative: float


class Check:
    """The answer in float64 of a batch's longest and shortest rows, for one layer's KV."""

    def __init__(
        self,
        shape: AttentionShape,
        batch: DecodeBatch,
        q: torch.Tensor,
        kv_layer: torch.Tensor,
        spec: LayerSpec,
    ) -> None:
        order = sorted(range(len(batch)), key=lambda row: batch.lengths[row])
        self._rows = sorted({*order[: _ROWS // 2], *order[-_ROWS // 2 :]})
        self._shape, self._dtype = shape, shape.dtype
        answers = [self._answer(batch, q, kv_layer, spec, row) for row in self._rows]
        self._expected = torch.stack(answers)

    def _answer(
        self, batch: DecodeBatch, q: torch.Tensor, kv_layer: torch.Tensor, spec: LayerSpec, row: int
    ) -> torch.Tensor:
        shape, length = self._shape, batch.lengths[row]
        task = Task(row, 0, 0, length)
        k, v = Gather(shape, batch.block_table, batch.lengths, [task], Scratch())(kv_layer)
        query = q[row].double().view(shape.num_kv_heads, shape.group_size, shape.head_dim)
        heads = []
        for head in range(shape.num_kv_heads):  # one by one: a long row in float64 is large
            scores = query[head] @ k[0, head].double().T * spec.scale
            heads.append(scores.softmax(dim=-1) @ v[0, head].double())
        return torch.cat(heads)

    def __call__(self, name: str, out: torch.Tensor) -> Errors:
        """Raises ChatError where ``out`` is wrong; ``name`` says whose and on what."""
        if not out.isfinite().all():
            raise ChatError(f"{name} is wrong: there are values that are not numbers")
        error = (out[self._rows].double() - self._expected).abs()
        mean = float(error.mean())
        errors = Errors(float(error.max()), mean, mean / float(self._expected.abs().mean()))
        most, mean_most = _TOLERANCE[self._dtype]
        if errors.max >= most or mean >= mean_most or errors.relative >= _RELATIVE[self._dtype]:
            raise ChatError(
                f"{name} is wrong: max |e| {errors.max:.2g}, mean |e| {errors.mean:.2g}, "
                f"{errors.relative:.2g} of the values; allowed are {most:g}, {mean_most:g}, "
                f"{_RELATIVE[self._dtype]:g}"
            )
        return errors
