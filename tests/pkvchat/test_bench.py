"""The benchmark: what it runs, and what it prints."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections import Counter
from itertools import groupby

import pytest

from pkvchat.bench import (
    Bench,
    Case,
    RandomWeights,
    Samples,
    bound_ts,
    cases,
    check_room,
    result,
    run,
    start,
)
from pkvchat.bench_table import PRINTERS
from pkvchat.errors import ChatError
from pkvchat.options import EngineOptions

ABOUT = {
    "model": "some-model",
    "model_size": 3 << 29,
    "model_n_params": 134_515_008,
    "backend": "CPU",
    "threads": 2,
    "policy": "adaptive",
    "batch": 1,
}
CASES = cases([512], [128], [0, 4096])


def rows(against: float | None = None):
    for case, speed in zip(CASES, (700.0, 95.25, 120.0, 45.0), strict=True):
        bound = 190.5 if case.new else None
        samples = Samples([speed - 1, speed + 1], Counter({"sdpa": case.new}), 0.02)
        yield result(case, samples, bound, against) | ABOUT


def test_cases_have_llama_benchs_names_and_order():
    assert [case.name for case in CASES] == [
        "pp512",
        "tg128",
        "pp512 @ d4096",
        "tg128 @ d4096",
    ]


def test_zero_tokens_is_no_test():
    assert cases([0], [16], [0]) == [Case(0, 16, 0)]
    assert cases([0], [0], [0, 8]) == []


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("depth", [0, 1, 16, 37])
def test_what_is_measured_is_what_the_name_says(make_engine, batch, depth):
    """A prompt is read in prefill alone; each decoded token is one step of the whole batch."""
    engine = make_engine(num_pages=40, context=Case(24, 5, depth).context)
    bench = Bench(engine, vocab_size=97, batch=batch)
    for _ in range(2):
        assert bench.measure(Case(24, 0, depth)) > 0
        assert sum(bench.strategies.values()) == 0
        assert bench.measure(Case(0, 5, depth)) > 0
        assert bench.strategies == {"sdpa": 5}
    lengths = [len(seq.tokens) for seq in engine.scheduler.sequences.values()]
    assert lengths == [depth + 1 + 5] * batch
    engine.scheduler.check_integrity()


def test_the_markdown_table(capsys):
    PRINTERS["md"](rows())
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in capsys.readouterr().out.splitlines()
    ]
    header, rule, *table = lines
    assert header == [
        "model",
        "size",
        "params",
        "backend",
        "threads",
        "policy",
        "batch",
        "test",
        "t/s",
        "bound",
        "of it",
    ]
    assert all(set(cell) <= {"-", ":"} for cell in rule)
    same = ["some-model", "1.5 GiB", "134.52 M", "CPU", "2", "adaptive", "1"]
    assert table == [
        [*same, "pp512", "700.00 ± 1.41", "", ""],
        [*same, "tg128", "95.25 ± 1.41", "190.5", "50.0%"],
        [*same, "pp512 @ d4096", "120.00 ± 1.41", "", ""],
        [*same, "tg128 @ d4096", "45.00 ± 1.41", "190.5", "23.6%"],
    ]


def test_the_ratio_is_to_the_last_of_several_policies(capsys):
    PRINTERS["md"](rows(against=381.0))
    header, _, *table = capsys.readouterr().out.splitlines()
    assert header.split("|")[-2].strip() == "ratio"
    assert [row.split("|")[-2].strip() for row in table] == ["1.837", "0.250", "0.315", "0.118"]


def test_policies_take_turns_on_the_same_sequences(make_engine):
    engine, order = make_engine(), []

    class Named(type(engine.runner.policy)):
        def choose(self, lengths):
            order.append(self.strategy)
            return super().choose(lengths)

        def observe(self, lengths, decision, step_us):
            raise AssertionError("a policy that learns tries what it doesn't think fastest")

    policies = {name: Named(name) for name in ("sdpa", "split")}
    bench = Bench(engine, vocab_size=97, batch=2)
    samples = bench.compare(Case(0, 3, 20), policies, 2, lambda stage, done, total: None)
    assert [name for name, _ in groupby(order)] == ["sdpa", "split"] * 3
    for name in policies:
        assert len(samples[name].speeds) == 2
        assert samples[name].strategies == {name: 3}
        assert 0 <= samples[name].idle < 1
    bench.close()
    assert engine.pool.num_used == 0


@pytest.mark.gpu
def test_no_measured_run_captures_a_graph(tiny_shape):
    """A prompt of one chunk is one step of a run."""
    config = tiny_shape()
    options = EngineOptions(device="cuda", context=100, policy="forced-split")
    engine = start(options, RandomWeights("tiny", "bf16"), lambda *progress: None).engine
    bench, graphs = Bench(engine, config.vocab_size, batch=1), engine.runner.graphs
    for case in cases([16], [8], [0, 40]):
        for _ in range(bench.warm_ups):
            bench.measure(case)
        captured = len(graphs)
        bench.measure(case)
        assert len(graphs) == captured > 0


def test_the_markdown_columns_line_up(capsys):
    PRINTERS["md"](rows())
    lines = capsys.readouterr().out.splitlines()
    bars = [[i for i, char in enumerate(line) if char == "|"] for line in lines]
    assert all(at == bars[0] for at in bars)


def test_json_and_csv_hold_the_same(capsys):
    PRINTERS["json"](rows())
    as_json = json.loads(capsys.readouterr().out)
    PRINTERS["csv"](rows())
    as_csv = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert as_json == list(rows())
    assert [float(row["avg_ts"]) for row in as_csv] == [row["avg_ts"] for row in as_json]
    assert [json.loads(row["samples_ts"]) for row in as_csv] == [r["samples_ts"] for r in as_json]


def test_the_program_measures_the_default_model(run_cli):
    done = run_cli("bench", "-p", 8, "-n", 4, "-d", "0,20", "-r", 2, "-o", "json")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert [row["test"] for row in measured] == ["pp8", "tg4", "pp8 @ d20", "tg4 @ d20"]
    for row in measured:
        assert row["avg_ts"] > 0
        assert len(row["samples_ts"]) == 2
        assert row["stddev_ts"] >= 0
        assert row["policy"] == "adaptive"
        assert row["model_n_params"] == 134_515_008
        assert {"model", "model_size", "dtype", "kv_dtype", "device", "versions", "date"} <= set(
            row
        )
    assert sum(measured[1]["strategies"].values()) == 4


def test_the_bound_counts_each_byte_that_a_step_must_read(make_engine):
    """All weights, here tied to the embedding, and the KV of each sequence's mean length."""
    engine = make_engine(max_chunk=50)
    runner = engine.runner
    config, weights = runner.model.config, runner.model.nbytes()
    assert runner.model.step_nbytes() == weights
    token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4
    assert bound_ts(engine, Case(0, 1, 0), 1, 1e9) == pytest.approx(1e9 / (weights + token))
    mean = 100 + (1 + 2 + 3 + 4 + 5) / 5
    expected = 3e9 / (weights + 3 * mean * token)
    assert bound_ts(engine, Case(0, 5, 100), 3, 1e9) == pytest.approx(expected)
    # Two prompts of 60 in chunks of 50: three steps, and each reads what its own chunks see.
    expected = 2 * 60 * 1e9 / (3 * weights + 2 * (150 + 160) * token)
    assert bound_ts(engine, Case(60, 0, 100), 2, 1e9) == pytest.approx(expected)
    assert bound_ts(engine, Case(60, 0, 100), 2, None) is None


@pytest.mark.parametrize("quant", ["bf16", "Q4_K_M"])
def test_random_weights_need_no_file(tiny_shape, capsys, quant):
    tiny = tiny_shape()
    options, policies = EngineOptions(device="cpu"), ["forced-sdpa"]
    tests = cases([8], [4], [20])
    assert run(options, tests, [2], policies, 1, "json", RandomWeights("tiny", quant)) == 0
    prompt, decode = json.loads(capsys.readouterr().out)
    assert prompt["model"] == f"tiny {quant}, random"
    assert prompt["bound_share"] < 1
    assert decode["strategies"] == {"sdpa": 4}
    assert math.isclose(decode["bound_share"], decode["avg_ts"] / decode["bound_ts"])
    matrices = tiny.hidden_size * (2 * tiny.q_size + 2 * tiny.kv_size + 3 * tiny.intermediate_size)
    assert prompt["model_n_params"] == pytest.approx(
        tiny.num_layers * matrices + 2 * tiny.vocab_size * tiny.hidden_size, rel=0.01
    )


def test_a_busy_machine_is_told_beside_the_table(tiny_shape, capsys, monkeypatch, tmp_path):
    tiny_shape()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # nothing is known of this machine
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 1000.0, 1000.0))
    options, weights = EngineOptions(device="cpu"), RandomWeights("tiny", "bf16")
    assert run(options, cases([8], [], [0]), [1], ["forced-sdpa"], 1, "json", weights) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)
    assert err.count("note: ") == 1
    assert "\nnote: other programs were busy while this device was measured; the next" in err


def test_random_weights_of_a_shape_there_is_not(run_cli):
    done = run_cli("bench", "--random-weights", "llama-4")
    assert (done.returncode, done.stdout) == (1, "")
    assert "unknown shape 'llama-4': one of llama-3-8b" in done.stderr
    done = run_cli("bench", "--random-weights", "llama-3-8b", "-m", "x")
    assert done.returncode == 2
    assert "-m and --random-weights" in done.stderr


@pytest.mark.parametrize(("depth", "new", "flag"), [(10_000_000, 1, "-d"), (8, 10_000_000, "-n")])
def test_a_context_too_long_names_the_flag_that_made_it_so(tiny_shape, depth, new, flag):
    tiny_shape()
    options = EngineOptions(device="cpu", kv_memory=1 << 20)
    tests, weights = cases([], [new], [depth]), RandomWeights("tiny", "bf16")
    with pytest.raises(
        ChatError, match=rf"fewer than the 100000\d\d that {flag} needs: lower {flag}$"
    ):
        run(options, tests, [1], ["forced-sdpa"], 1, "md", weights)


def test_a_batch_that_the_pool_cannot_hold(make_engine):
    engine = make_engine(num_pages=45)
    check_room(engine, context=66, batch=8)
    with pytest.raises(ChatError, match="9 sequences of 66 tokens need 45 KV pages and there are"):
        check_room(engine, context=66, batch=9)
