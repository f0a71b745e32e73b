"""What the policy would pick in batches that were measured on an H200, by the records for it."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest
import torch

from pkvchat.attention_bench.cases import ragged
from pkvchat.attention_bench.results import CaseResult, read_results
from pkvchat.attention_bench.summary import flashinfer
from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.policy.calibration import Calibration
from pkvchat.kernels.policy.cost import CostModel
from pkvchat.kernels.policy.policy import create_policy
from pkvchat.kernels.policy.records import SHIPPED

MEASURED = Path(__file__).parents[3] / "benchmarks" / "h200-policy.json"
NAMES = ["flashinfer", "split", "workqueue", "sdpa"]
LAYERS = 32


def lengths(case: CaseResult) -> tuple[int, ...]:
    mean = case.tokens // case.rows
    return ragged(case.rows, mean) if "ragged" in case.case else (mean,) * case.rows


def replayed(case: CaseResult) -> tuple[float, str]:
    """Microseconds of a layer with what is picked now, and the pick.

    A num_splits that was not timed is taken to be slower by as much as is predicted, if at all.
    """
    qo, kv = case.heads
    shape = AttentionShape(qo, kv, 128, 16, torch.float16, torch.device("cuda"))
    (path,) = SHIPPED.glob(f"nvidia-h200-{qo}-{kv}-heads-head-dim-128-page-size-16-float16.json")
    calibration = Calibration.from_json(json.loads(path.read_text())["data"])
    rows = lengths(case)
    decision = create_policy("adaptive", shape, calibration, NAMES, LAYERS).choose(rows)
    if decision.strategy == "flashinfer":
        return case.times["flashinfer tc" if shape.group_size >= 4 else "flashinfer cc"].layer_us, (
            "flashinfer"
        )
    timed = case.times[decision.strategy]
    pick = f"{decision.strategy} {decision.num_splits}"
    if timed.num_splits == decision.num_splits:
        return timed.layer_us, pick
    own = case.times["adaptive"]
    if (case.picked, own.num_splits) == (decision.strategy, decision.num_splits):
        return own.layer_us, pick
    model = CostModel(shape, calibration.workers, calibration.costs, LAYERS)
    tiles = [-(-length // shape.page_size) for length in rows]
    now, then = (
        model.predict(decision.strategy, tiles, splits)
        for splits in (decision.num_splits, timed.num_splits)
    )
    return timed.layer_us * max(1.0, now / then), pick


@pytest.fixture(scope="module")
def replays() -> dict[str, tuple[float, float, str]]:
    """By case: over the best, FlashInfer / it, and the pick."""
    found = {}
    for case in read_results(MEASURED).cases:
        us, pick = replayed(case)
        best = min(timing.layer_us for timing in case.times.values())
        theirs = flashinfer(case)
        assert theirs is not None
        found[case.case] = us / best - 1, case.times[theirs].layer_us / us, pick
    return found


def test_picks_are_next_to_the_best(replays):
    assert len(replays) > 100
    assert median(over for over, _, _ in replays.values()) < 0.01
    assert not {case: found for case, found in replays.items() if found[0] > 0.05}


def test_no_pick_is_slower_than_flashinfer(replays):
    assert not {case: found for case, found in replays.items() if found[1] < 0.99}
