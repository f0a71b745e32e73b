"""Trials while chatting: few, and right about which strategy is faster."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.policy.calibration import Calibration
from pkvchat.kernels.policy.cost import StrategyCost
from pkvchat.kernels.policy.policy import create_policy
from pkvchat.kernels.policy.trials import EVERY, batch_kind

SHAPE = AttentionShape(32, 8, 128, 16, torch.float16, torch.device("cuda"))
LAYERS = 32
REST_US = 3000.0  # of a step, beside attention


def constant_policy(predicted, name="adaptive"):
    """A policy to which each strategy takes ``predicted`` microseconds, whatever the batch."""
    costs = {
        strategy: StrategyCost(0, 0, 0, 0, 0, 0, eager=us) for strategy, us in predicted.items()
    }
    return create_policy(name, SHAPE, Calibration(264, costs), list(costs), LAYERS)


def chat(policy, steps, true_us, noise=0.0, spikes=0.0, lengths=(8000,), seed=0):
    """Decode ``steps`` steps, telling the policy their times; returns the strategies that ran.

    noise: standard deviation of a step's time as a share of it. spikes: share of steps that take
    half as long again.
    """
    rng, ran = random.Random(seed), []
    for step in range(steps):
        now = tuple(length + step for length in lengths)
        decision = policy.choose(now)
        us = (REST_US + step / 50 + LAYERS * true_us[decision.strategy]) * rng.gauss(1, noise)
        policy.observe(now, decision, us * (1.5 if rng.random() < spikes else 1))
        ran.append(decision.strategy)
    return ran


@settings(max_examples=25)
@given(data=st.data())
def test_few_steps_are_trials_whatever_happens(data):
    """Of any run of steps, from the first to any other, fewer than one in 200."""
    policy = constant_policy({"split": 10, "workqueue": 11, "flashinfer": 12})
    draw = random.Random(data.draw(st.integers(0, 1 << 30)))
    trials = steps = 0
    for _ in range(data.draw(st.integers(1, 6))):
        lengths = [draw.randint(1, 50_000) for _ in range(draw.randint(1, 8))]
        for _ in range(draw.choice((1, 50, 400, 1000))):
            lengths = [length + 1 for length in lengths]
            decision = policy.choose(tuple(lengths))
            steps += 1
            trials += "a trial of" in decision.reason
            assert trials * 200 < steps
            if draw.random() < 0.9:
                policy.observe(tuple(lengths), decision, draw.uniform(1, 1e4))


@pytest.mark.parametrize("noise", [0.0, 0.003])
@pytest.mark.parametrize("rows", [1, 4])
def test_trials_find_the_faster_strategy_where_the_prior_is_wrong_by_a_fifth(noise, rows):
    policy = constant_policy({"split": 20, "workqueue": 22, "flashinfer": 50})
    true_us = {"split": 20, "workqueue": 22 * 0.8, "flashinfer": 50}
    ran = chat(policy, 40 * EVERY, true_us, noise, lengths=(65_536,) * rows)
    assert ran[0] == "split"
    assert set(ran[-EVERY:]) == {"workqueue"}
    assert "flashinfer" not in ran
    assert "going by trials, workqueue should take" in policy.choose((70_000,) * rows).reason


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("noise", "spikes"), [(0.01, 0.0), (0.05, 0.0), (0.005, 0.1)])
def test_noise_never_turns_a_right_prior(seed, noise, spikes):
    us = {"split": 20, "workqueue": 20.5}
    ran = chat(constant_policy(us), 20 * EVERY, us, noise, spikes, seed=seed)
    assert len(ran) - ran.count("split") <= 20
    assert ran[-1] == "split"


def test_trials_end_when_the_pair_is_settled():
    us = {"split": 20, "workqueue": 22}
    ran = chat(constant_policy(us), 40 * EVERY, us, lengths=(65_536,))
    assert 6 <= ran.count("workqueue") < 24
    assert set(ran[-20 * EVERY :]) == {"split"}


def test_a_slow_first_trial_does_not_decide():
    """A strategy's first step in a batch of some size compiles, or captures a graph."""
    policy, true_us = (
        constant_policy({"split": 20, "workqueue": 22}),
        {"split": 20, "workqueue": 15},
    )
    first = {"workqueue"}
    for step in range(30 * EVERY):
        decision = policy.choose((65_536 + step,))
        us = REST_US + LAYERS * true_us[decision.strategy]
        if decision.strategy in first:
            first.remove(decision.strategy)
            us *= 1000
        policy.observe((65_536 + step,), decision, us)
    assert decision.strategy == "workqueue"


def test_forced_policies_try_nothing():
    us = {"split": 20, "workqueue": 20}
    ran = chat(constant_policy(us, "forced-workqueue"), 3 * EVERY, us)
    assert set(ran) == {"workqueue"}


def test_far_candidates_are_not_tried():
    ran = chat(constant_policy({"split": 20, "sdpa": 30}), 3 * EVERY, {"split": 20, "sdpa": 1})
    assert set(ran) == {"split"}


def test_a_verdict_is_for_batches_of_its_kind():
    policy = constant_policy({"split": 20, "workqueue": 22})
    true_us = {"split": 20, "workqueue": 17}
    assert chat(policy, 30 * EVERY, true_us, lengths=(65_536,))[-1] == "workqueue"
    assert policy.choose((70_000,)).strategy == "workqueue"
    assert policy.choose((2_000,)).strategy == "split"
    assert policy.choose((8_000,) * 8).strategy == "split"


def test_kinds_tell_rows_tokens_and_raggedness_apart():
    kinds = {batch_kind(lengths) for lengths in [(9000,), (2000,), (3000,) * 3, (8900, 50, 50)]}
    assert len(kinds) == 4
    assert batch_kind((9000, 9100)) == batch_kind((9500, 9200))
