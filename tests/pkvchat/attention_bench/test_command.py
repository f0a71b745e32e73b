"""The command as a person runs it."""

from __future__ import annotations

import json

import pytest
import torch

from pkvchat.attention_bench import options
from pkvchat.attention_bench.command import measure
from pkvchat.attention_bench.results import read_results
from pkvchat.cli import main
from pkvchat.counted import counted

SMALL = ["--heads", "4/2", "--head-dim", "64", "--steps", "2", "--seeds", "7"]


@pytest.fixture
def trace_file(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("prompt_len,decode_len,arrival\n300,3,0\n40,2,0\n")
    return path


def bench(*args):
    return main(["bench-attention", *map(str, args)])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--trace", "poisson"], "--trace: 'poisson' must be of bucketed, homogeneous, bimodal"),
        (["--trace", ""], "--trace: '' must be of bucketed"),
        (["--engine", "split,turbo"], "--engine: 'turbo' must be of flashinfer, split, workqueue"),
        (["--engine", "oracle"], "the oracle needs other engines"),
        (["--engine", "flashinfer", "--device", "cpu"], "flashinfer needs a CUDA device"),
        (["--heads", "32"], "--heads: '32' must be two whole numbers such as 32/8"),
        (["--heads", "32/5"], "--heads: '32/5' must be two whole numbers such as 32/8"),
        (["--heads", "8/0"], "--heads: '8/0' must be"),
        (["--heads", "9" * 5000 + "/1"], f"--heads: '{'9' * 60}…' must be two whole numbers"),
        (["--layers", "9" * 5000], f"--layers: '{'9' * 60}…' must be a whole number"),
        (["--head-dim", "100"], "--head-dim: '100' must be one of 64, 80, 96, 128, 256"),
        (["--page-size", "8"], "--page-size: '8' must be"),
        (["--dtype", "f64"], "--dtype: 'f64' must be one of f32, f16, bf16"),
        (["--kv-dtype", "q4"], "--kv-dtype: 'q4' must be one of f32, f16, bf16, fp8, q8_0"),
        (
            ["--kv-dtype", "f16", "--dtype", "bf16", "--device", "cpu"],
            "--kv-dtype float16 with --dtype bfloat16: a KV cache that is not quantised holds",
        ),
        (["--seeds", "a"], "--seeds: 'a' must be whole numbers"),
        (["--steps", "0"], "--steps: '0' must be a whole number from 1 to 65536"),
        (["--max-active", "-1"], "--max-active: '-1' must be a whole number from 1 to 1024"),
        (["--layers", "99999999"], "--layers: '99999999' must be a whole number from 1 to 1024"),
        (["--cases", ""], "--cases: '' must be part of a batch's name, or all"),
        (["--max-active", "5000"], "--max-active: '5000' must be a whole number from 1 to 1024"),
        (["--hole-fraction", "1"], "--hole-fraction: '1' must be a number from 0 to 0.9"),
        (["--batch", "1,,2"], "--batch: '' must be a whole number from 1 to 1024"),
        (["--batch", "100000"], "--batch: '100000' must be a whole number from 1 to 1024"),
        (["--length", "0"], "--length: '0' must be a whole number of at least 1"),
        (["--group", "9", "--grid", "--device", "cpu"], "--group 9: 8 query heads make no such"),
        (
            ["--grid", "--length", "9" * 12, "--device", "cpu"],
            "has at most 128 MiB of KV in a layer",
        ),
        (["--cases", "B9", "--device", "cpu"], "--cases B9: no such batch; there are B1 4k, B1 8k"),
        (["--trace-file", "none.csv"], "cannot read the trace file none.csv: No such file"),
        (["--from", "none.json"], "cannot read the results file none.json: No such file"),
        (["--from", "x.json", "--grid"], "--from measures nothing: it goes with -o, --output and"),
        (["--output", "no/such/folder.md"], "--output no/such/folder.md: name a file in a"),
        (["--plot", "plot.jpg"], "--plot plot.jpg: only PNG is written"),
        (["-o", "csv"], "-o: invalid choice: 'csv'"),
        (["--trace", "zipf", "--trace-file", "x.csv"], "not allowed with argument"),
        (["bucketed"], "unrecognized arguments: bucketed (see pkvchat bench-attention --help)"),
    ],
)
def test_a_wrong_argument_is_one_line(capsys, args, said):
    assert bench(*args) in (1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert said in lines[-1]
    assert lines[-1].startswith("pkvchat: ")
    assert "fault of pkvchat" not in err


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    assert bench("--plot", "x.png") == 2
    assert "--plot needs matplotlib: pip install 'pkvchat[plot]'" in capsys.readouterr().err


def test_a_trace_file_is_served_and_its_results_are_drawn_elsewhere(tmp_path, trace_file, capsys):
    measured, plot = tmp_path / "results.json", tmp_path / "plot.png"
    args = ["--trace-file", trace_file, *SMALL, "--device", "cpu", "--max-active", 2]
    assert bench(*args, "-o", "json", "--output", measured) == 0
    assert capsys.readouterr().out == ""
    results = read_results(measured)
    (trace,) = results.traces
    assert (trace.trace, trace.max_active, trace.steps, trace.tokens) == ("mine", 2, 2, 4)
    assert set(trace.elapsed["calls"]) == {"split", "workqueue", "sdpa", "adaptive", "oracle"}
    assert results.cases == []
    assert any(note.startswith("flashinfer: ") for note in results.notes)
    assert bench("--from", measured, "--plot", plot) == 0
    out = capsys.readouterr().out
    assert "| mine B2 | 1 | workqueue |" in out
    assert counted(torch.get_num_threads(), "thread") in out.splitlines()[0]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_grid_in_bfloat16_to_standard_output(capsys):
    args = ["--grid", "--batch", "1,2", "--length", "64", "--group", "2", "--dtype", "bf16"]
    assert bench(*args, *SMALL, "--device", "cpu", "--engine", "split,sdpa", "-o", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert [case["case"] for case in data["cases"]] == ["G2 B1 64", "G2 B2 64", "G2 B2 64 ragged"]
    assert all(set(case["times"]) == {"split", "sdpa"} for case in data["cases"])
    assert data["traces"] == []


@pytest.mark.parametrize("kv_dtype", ["fp8", "q8_0", "int8"])
def test_a_quantised_cache(trace_file, capsys, kv_dtype):
    args = ["--trace-file", trace_file, *SMALL, "--device", "cpu", "--kv-dtype", kv_dtype]
    assert bench(*args, "--engine", "workqueue,sdpa", "-o", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["traces"][0]["kv_bytes"] < 340 * 2 * 2 * 64 * 4 / 2


@pytest.mark.parametrize("flag", ["--dtype", "--kv-dtype"])
@pytest.mark.parametrize("name", ["f16", "fp16"])
def test_names_of_a_cache_that_is_not_quantised(trace_file, capsys, flag, name):
    args = ["--trace-file", trace_file, *SMALL, "--device", "cpu", flag, name]
    assert bench(*args, "--engine", "sdpa", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["about"]["shape"].startswith("float16, ")


def test_a_trace_file_of_endless_answers_needs_what_the_steps_reach(tmp_path, capsys):
    path = tmp_path / "long\x1b[31m.csv"
    path.write_text("prompt_len,decode_len\n" + "1,1048576\n" * 2000)
    args = ["--trace-file", path, *SMALL, "--device", "cpu", "--layers", 1, "--engine", "split"]
    assert bench(*args) == 0
    out, _ = capsys.readouterr()
    assert "| long␛[31m B8 |" in out
    assert "\x1b" not in out


def test_prompts_that_no_memory_holds_are_refused_before_they_are_laid_out(tmp_path, capsys):
    path = tmp_path / "large.csv"
    path.write_text("prompt_len,decode_len\n" + "1048576,1\n" * 1024)
    args = ["--trace-file", path, "--heads", "64/64", "--max-active", 1024, "--device", "cpu"]
    assert bench(*args) == 1
    assert "the trace large needs 67109889 KV pages in a layer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("v.csv", "\x1b]0;pwn\x07\x1b[31m,b\n1,2\n", "the columns are ␛]0;pwn␇␛[31m, b\n"),
        ("v\x1b[31m.csv", "", "v␛[31m.csv: no column"),
        ("v.csv", 'a,"b\nc\nd', "the columns are a, b c d\n"),
        ("v.csv", ",".join(map(str, range(200_000))), "the columns are 0, 1, 2, "),
    ],
)
def test_what_a_file_holds_neither_acts_nor_fills_the_screen(tmp_path, capsys, name, text, said):
    path = tmp_path / name
    path.write_text(text)
    assert bench("--trace-file", path, "--device", "cpu") == 1
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert len(err) < 1000
    assert "\x1b" not in err


@pytest.mark.gpu
def test_on_a_gpu(trace_file, capsys):
    args = ["--trace-file", trace_file, "--steps", "2", "--layers", "4", "-o", "json"]
    assert bench(*args, "--cases", "B1 4k", "--engine", "flashinfer,split,workqueue,oracle") == 0
    data = json.loads(capsys.readouterr().out)
    (trace,), (case,) = data["traces"], data["cases"]
    assert set(trace["elapsed"]) == {"calls", "replays", "model"}
    for elapsed in (e for engines in trace["elapsed"].values() for e in engines.values()):
        assert elapsed["device_ms"] > 0
        assert elapsed["wall_ms"] > 0
    assert {"split", "workqueue"} < set(case["times"])
    assert case["floor_us"] > 0
    (counters,) = data["counters"].values()
    assert counters["workqueue"]["tasks"] >= 2 * 8  # of two rows, each with eight KV heads


class Interrupt:
    """A progress line at which someone presses Ctrl+C."""

    def __init__(self, at):
        self.at = at

    def __call__(self, stage, done, total):
        if (stage, done) == self.at:
            raise KeyboardInterrupt


def test_an_interrupted_run_keeps_what_it_has():
    given = {"device": "cpu", "grid": True, "engines": ("split",), "lengths": (64,)}
    results = measure(given, Interrupt(("G4 B4 64 ragged", 2)))
    assert [case.case for case in results.cases] == ["G4 B1 64", "G4 B4 64"]
    assert results.notes == ["interrupted before all was measured"]
    with pytest.raises(KeyboardInterrupt):
        measure(given, Interrupt(("G4 B1 64", 0)))
