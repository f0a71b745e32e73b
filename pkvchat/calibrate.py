"""``pkvchat calibrate``: measure this device again, and show what the policy makes of it."""

from __future__ import annotations

import sys
from contextlib import closing

from .clean import one_line
from .errors import startup_errors
from .options import EngineOptions
from .progress_line import ProgressLine
from .startup import start_engine


def run(options: EngineOptions) -> int:
    """Measure for the model in ``options``, keep the record for later starts, print a summary."""
    with closing(ProgressLine(sys.stderr)) as progress, startup_errors():
        started = start_engine(options, progress, fresh=True)
        for note in started.ready.notes:
            progress.note(note)
    ready, policy = started.ready, started.make_policy("adaptive")
    print(f"{ready.device}: {ready.dtype}")
    for name, why in ready.strategies.items():
        if why:
            print(f"{name} cannot run here: {why}")
    print(f"\nOne layer of {one_line(ready.model)}, predicted in µs:\n")
    for what, lengths in batches(ready.context).items():
        decision = policy.choose(lengths)
        us = ", ".join(f"{name} {us:g}" for name, us in decision.predicted_us.items())
        print(f"{what + ':':<28} {decision.strategy:<10} ({us})")
    return 0


def batches(context: int) -> dict[str, tuple[int, ...]]:
    """Decode batches that tell strategies apart: a description and the length of each row."""
    short = max(1, context // 16)
    return {
        f"1 chat of {short}": (short,),
        f"1 chat of {context}": (context,),
        f"8 chats of {short}": (short,) * 8,
        f"8 chats of {context}": (context,) * 8,
        f"1 of {context}, 7 of {short}": (context, *(short,) * 7),
    }
