"""How a checkpoint's weights are kept so that they fit the memory there is."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from pkvchat.kernels.products.linear import LinearTypes

from .checkpoint import Checkpoint
from .decoder import Decoder
from .errors import ModelError
from .weight_plan import WeightPlan

COPIES_SHARE = 0.8  # of the free memory that weights and their copies may take: KV comes after them


def fit(
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    types: LinearTypes,
    memory: float | None,
    *,
    asked: bool = False,
) -> tuple[LinearTypes, str]:
    """``types``, or on a CPU the nearest to them with which the weights fit, and a note about that.

    memory: bytes free on the device; None takes ``types`` as they are, and so does ``asked``: that
    a person chose them. Raises ModelError if nothing fits, and for all that is wrong with the
    checkpoint's tensors, before any of them is read.
    """
    lean = replace(types, dense=False)
    ways = [(types, "")]
    memory = math.inf if memory is None else memory
    if device.type == "cpu" and not asked:
        ways += [
            (lean, "without 16-bit copies, so prompts are read more slowly"),
            (replace(lean, packed_bits=8), "packed, although this processor is slow with them"),
        ]
    wanted = 0
    for way, what in ways:
        plan = WeightPlan(checkpoint, device, dtype, way)
        Decoder(checkpoint.config, plan)
        wanted = wanted or plan.held
        share = COPIES_SHARE if plan.packed and way.dense and device.type == "cpu" else 1
        if plan.held <= share * memory:
            note = what and (
                f"the weights would take {wanted / 1e9:.2g} of {memory / 1e9:.2g} GB: they are kept"
                f" {what}"
            )
            return way, note
    raise ModelError(
        f"{checkpoint.path}: the weights need {plan.held / 1e9:.2g} GB on {device},"
        f" {memory / 1e9:.2g} GB are free: close other programs, or choose a smaller model or"
        " quantisation"
    )
