"""From figures to ratios, Markdown, JSON and a picture, and back from JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pkvchat.attention_bench import summary
from pkvchat.attention_bench.plot import draw
from pkvchat.attention_bench.report import markdown
from pkvchat.attention_bench.results import Counters, Elapsed, Timing, merge, read_results
from pkvchat.errors import ChatError


def test_flashinfer_is_its_better_path(results):
    first, second = results.cases
    assert summary.flashinfer(first) == "flashinfer cc"
    assert summary.flashinfer(second) == "flashinfer tc"
    assert summary.ratio(first) == pytest.approx(11 / 10)
    assert summary.ratio(second) == pytest.approx(20 / 14)


def test_adaptive_against_the_best_and_against_flashinfer(results):
    found = summary.adaptive(results.cases, lambda timing: timing.layer_us)
    assert found.median_over == pytest.approx((0 + 15 / 14 - 1) / 2)
    assert (found.worst_over, found.worst_case) == (pytest.approx(15 / 14 - 1), "B1 8k")
    assert (found.against, found.against_case) == (pytest.approx(11 / 10), "B1 4k")


def test_planning_is_spread_over_the_layers(results):
    found = summary.adaptive(results.cases, lambda timing: timing.step_us(results.layers))
    assert found.against == pytest.approx((11 + 100 / 32) / 10)
    assert Timing(7.0, 64.0).step_us(32) == 9.0


def test_adaptive_needs_something_beside_it(results):
    alone = [replace(case, times={"adaptive": case.times["adaptive"]}) for case in results.cases]
    assert summary.adaptive(alone, lambda timing: timing.layer_us) is None


def test_traces_are_means_over_seeds(results):
    found = summary.served(results.traces, "calls", "split")
    assert found.wall_tps.mean == pytest.approx((20 / 0.002 + 20 / 0.001) / 2)
    assert found.device_tps.mean == pytest.approx(2 * found.wall_tps.mean)
    assert found.wall_ratio.mean == pytest.approx((4 / 2 + 4 / 1) / 2)
    assert found.wall_ratio.sd == pytest.approx(2**0.5)
    slower = summary.served(results.traces, "calls", "flashinfer cc")
    assert slower.wall_ratio.mean == pytest.approx(4 / 5)


def test_without_flashinfer_there_is_no_ratio(results):
    traces = [
        replace(trace, elapsed={"calls": {"split": Elapsed(2.0, 1.0)}}) for trace in results.traces
    ]
    assert summary.served(traces, "calls", "split").wall_ratio is None
    markdown(replace(results, traces=traces, cases=[], counters={}))


def test_the_markdown_report(results):
    lines = markdown(results).splitlines()
    assert lines[0].startswith("NVIDIA H200, torch 2.11.0, triton 3.6.0, 2026")
    assert "    pkvchat bench-attention" in lines
    rows = {line.split(" | ")[0]: line for line in lines if line.startswith("| B1")}
    assert rows["| B1 4k"] == (
        "| B1 4k | 16.8 | 5.0 | 11.0 cc | 10.0 |  | 50% | 1.10 | 1.20 | 10.0 | split |"
    )
    assert "| zipf B2 | 2 | split | 15000 | 30000 | 3.000 ± 1.414 | 3.000 ± 1.414 |  |" in lines
    picked = [line for line in lines if line.endswith("| split 70%, workqueue 30% |")]
    assert len(picked) == 1
    assert "| zipf B2 | split | 2 | 64 | 50% | 2.54 | 2.0 | 75.0 | 26.7 | 13% |" in lines
    assert "| zipf B2 | flashinfer tc | 3 |  |  |  | 2.0 | 200.0 | 10.0 | 5% |" in lines
    assert "- sdpa: not asked for" in lines
    (errors,) = [line for line in lines if line.startswith("Largest error against float64: ")]
    assert "workqueue 1.0e-04" in errors
    worst = [line for line in lines if line.startswith("Adaptive, by the time")]
    assert "3.6% over the oracle's in the median, 7.1% at worst (B1 8k)" in worst[0]
    assert "FlashInfer / adaptive at least 1.100 (B1 4k)" in worst[0]


def test_every_table_has_as_many_cells_in_each_line(results):
    widths = set()
    for line in [*markdown(results).splitlines(), ""]:
        if line.startswith("|"):
            widths.add(line.count("|"))
        else:
            assert len(widths) <= 1
            widths = set()


def test_json_comes_back(results, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(results.to_json())
    assert read_results(path) == results
    assert json.loads(path.read_text())["cases"][0]["case"] == "B1 4k"


def test_runs_are_merged_if_they_measured_the_same(results):
    other = replace(results, about={**results.about, "command": "pkvchat other"}, notes=["more"])
    both = merge([results, other])
    assert both.cases == results.cases * 2
    assert both.traces == results.traces * 2
    assert both.notes == ["sdpa: not asked for", "more"]
    assert both.about["command"] == "pkvchat bench-attention && pkvchat other"
    assert merge([results]) == results
    uncounted = replace(other, counters={"zipf B2": {"sdpa": Counters(9)}})
    assert "| sdpa | 9 |" not in markdown(merge([results, uncounted]))
    elsewhere = replace(other, about={**results.about, "device": "NVIDIA L4"})
    with pytest.raises(ChatError, match="device is NVIDIA H200 in one and NVIDIA L4 in another"):
        merge([results, elsewhere])


def _without(*keys):
    def change(data):
        for key in keys[:-1]:
            data = data[key]
        del data[keys[-1]]

    return change


def _with(value, *keys):
    def change(data):
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _without("version"),
        _with(99, "version"),
        _without("about", "device"),
        _with("no", "about"),
        _with([7], "cases"),
        _without("cases", 0, "times"),
        _with("fast", "cases", 0, "times", "split", "layer_us"),
        _with(None, "cases", 0, "kv_bytes"),
        _with("x", "traces", 0, "steps"),
        _with({"wall": 1}, "traces", 0, "elapsed", "calls", "split"),
        _without("traces", 0, "elapsed", "calls"),
        _with(7, "counters"),
        _with([7], "notes"),
    ],
)
def test_json_of_another_kind_is_refused(results, tmp_path, change):
    path = tmp_path / "results.json"
    data = json.loads(results.to_json())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ChatError, match=r"is not what bench-attention -o json writes"):
        read_results(path)


@pytest.mark.parametrize("text", ["", "[]", "7", '{"version": 1', "[" * 100_000])
def test_what_is_no_results_file_is_refused(tmp_path, text):
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(ChatError, match=r"is not what bench-attention -o json writes"):
        read_results(path)


def test_the_picture_is_a_png(results, tmp_path):
    path = tmp_path / "plot.png"
    draw(results, path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n")
    assert len(data) > 10_000
    with pytest.raises(ChatError, match="nothing to draw"):
        draw(replace(results, cases=[], traces=[]), path)
