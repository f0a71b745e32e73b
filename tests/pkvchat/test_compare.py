"""The same prompts under several policies: what is read, run, found and printed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkvchat import compare
from pkvchat.compare import Answer, Round
from pkvchat.errors import ChatError
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams
from pkvchat.service import ChatService
from pkvchat.steps import StepRecord

POLICIES = ["forced-sdpa", "forced-split"]
PROMPTS = ["Name three colours of the rainbow.", "What is a fork?", "Hello!"]
LINE = st.text("abc .", min_size=1).map(str.strip).filter(bool)


@pytest.fixture(scope="module")
def service() -> Iterator[ChatService]:
    options = EngineOptions(device="cpu", dtype="f32", context=256, threads=1)
    service = ChatService(options, lambda stage, done, total: None)
    yield service
    service.close()


def step(strategy: str, ms: float, batch: int = 1) -> StepRecord:
    return StepRecord(1, strategy, "", batch, (9,) * batch, 1, {}, ms, 0.0, 1, 9)


def made_up() -> list[Round]:
    texts = {"adaptive": "a big sight", "forced-sdpa": "a bigger one"}
    times = {"adaptive": ("split", 10.0), "forced-sdpa": ("sdpa", 20.0)}
    return [
        Round(policy, [Answer("p", text, "stop", 4, 0.1)], [step(*times[policy])] * 4)
        for policy, text in texts.items()
    ]


@given(st.lists(LINE, min_size=1))
def test_a_file_without_blank_lines_has_a_prompt_a_line(lines: list[str]) -> None:
    assert compare.split_prompts("\n" + "\n".join(lines) + "\n\n") == lines


@given(st.lists(st.lists(LINE, min_size=1).map("\n".join), min_size=2))
def test_blank_lines_make_blocks(blocks: list[str]) -> None:
    assert compare.split_prompts("\n \n\n".join(blocks)) == blocks


def test_each_policy_answers_every_prompt_with_its_strategy(service: ChatService) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=5)
    rounds = list(compare.compare(service, params, POLICIES, PROMPTS, 2, lambda *_: None))
    assert [one.policy for one in rounds] == [*POLICIES, *reversed(POLICIES)]
    for policy in POLICIES:
        assert [a.prompt for a in compare.answers_of(policy, rounds)] == PROMPTS
        steps = compare.steps_of(policy, rounds)
        assert {f"forced-{s.strategy}" for s in steps} == {policy}
        assert {s.batch for s in steps} == {1, 2}
    assert compare.partings(POLICIES, rounds) == []
    last = [one.steps[0] for one in rounds[2:]]  # one prompt alone: nothing is left of the others
    assert [s.pages_used for s in last] == [-(-s.seq_lens[0] // 16) for s in last]


def test_what_a_person_should_know_is_said_beside_the_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = EngineOptions(device="cpu", dtype="f32", kv_memory=16 << 20, threads=1)
    params = SamplingParams(max_tokens=2)
    assert compare.run(options, params, POLICIES, ["hi"], 1, "json") == 0
    out, err = capsys.readouterr()
    assert "\nnote: --kv-memory of 16 MiB holds 336 tokens of KV: the context is 336" in err
    assert json.loads(out)


def test_what_cannot_run_is_said_in_one_line(service: ChatService) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=2)
    with pytest.raises(ChatError, match="forced-flashinfer: flashinfer needs"):
        compare.answer(service, "forced-flashinfer", ["hi"], greedy)
    with pytest.raises(ChatError, match=r"prompt 'word word.*too many for a context of 256"):
        compare.answer(service, "adaptive", ["word " * 400], greedy)
    assert compare.answer(service, "adaptive", ["hi"], greedy).answers[0].new_tokens == 2


def test_the_table_says_speed_shares_and_where_texts_part(
    capsys: pytest.CaptureFixture[str],
) -> None:
    compare.print_markdown(["adaptive", "forced-sdpa"], made_up())
    out = capsys.readouterr().out
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines()[:4]]
    assert table[2] == ["adaptive", "4", "100.0", "10.00", "10.00", "split 100%"]
    assert table[3] == ["forced-sdpa", "4", "50.0", "20.00", "20.00", "sdpa 100%"]
    assert "forced-sdpa / adaptive: 0.500 in 1 run, too few to tell: give prompts for 4" in out
    assert "0 of 1 texts are equal" in out
    assert "Prompt 1 at character 5: ' sight', forced-sdpa 'ger one'." in out
    assert "   adaptive ▁▁▁▁\nforced-sdpa ████\n" in out


@pytest.mark.parametrize(
    ("times", "says"),
    [
        (
            (10.0, 10.2, 9.8, 10.0),
            "1.000 in 4 runs (0.954 to 1.049 at 99%), no difference beyond the runs' spread.",
        ),
        ((5.0, 5.0, 5.1, 5.1), "1.980 in 4 runs (1.915 to 2.048 at 99%), so b is faster."),
        ((20.0, 20.1, 20.0, 20.0), "0.499 in 4 runs (0.496 to 0.503 at 99%), so b is slower."),
        ((5.0, 5.0, 5.0), "2.000 in 3 runs, too few to tell: give prompts for 4 batches or more"),
    ],
)
def test_a_difference_is_told_from_noise(
    capsys: pytest.CaptureFixture[str], times: tuple[float, ...], says: str
) -> None:
    """``b``'s steps take ``times``, one for each run; ``a``'s always take 10 ms."""
    both = [("a", (10.0,) * len(times)), ("b", times)]
    answers = [Answer("p", "text", "stop", 1, 0.1)]
    rounds = [Round(policy, answers, [step("sdpa", ms)]) for policy, runs in both for ms in runs]
    compare.print_markdown(["a", "b"], rounds)
    assert f"b / a: {says}" in capsys.readouterr().out


@pytest.mark.parametrize("runs", [4, 5, 8, 100])
def test_equal_policies_are_seldom_told_apart(runs: int) -> None:
    draw = random.Random(runs)
    verdicts = 0
    for _ in range(2000 if runs < 100 else 200):
        low, high = compare.likely_ratio([noisy(draw) / noisy(draw) for _ in range(runs)])
        verdicts += not low <= 1 <= high
    assert verdicts < (40 if runs < 100 else 8)


def test_a_tenth_is_nearly_always_told_in_five_runs() -> None:
    draw = random.Random(0)
    found = [[1.1 * noisy(draw) / noisy(draw) for _ in range(5)] for _ in range(2000)]
    assert sum(compare.likely_ratio(ratios)[0] > 1 for ratios in found) > 1800


def noisy(draw: random.Random) -> float:
    return draw.gauss(1.0, 0.02)


def test_one_token_has_no_speed_and_why_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    answers = [Answer("p", "a", "length", 1, 0.1)]
    rounds = [Round(policy, answers, []) for policy in "ab"]
    compare.print_markdown(["a", "b"], rounds)
    table, _, says = capsys.readouterr().out.partition("\n\n")
    cells = [cell.strip() for cell in table.splitlines()[2].split("|")[1:-1]]
    assert cells == ["a", "1", "-", "-", "-", ""]
    assert "No speed: no answer had a decode step" in says
    assert "Give -n 2 or more." in says
    compare.print_json(["a", "b"], rounds)
    figures = json.loads(capsys.readouterr().out)["policies"]["b"]
    assert [figures[name] for name in ("tokens_per_s", "step_ms_p50", "step_ms_p95")] == [None] * 3
    assert figures["ratios"] == []


def test_json_holds_everything(capsys: pytest.CaptureFixture[str]) -> None:
    compare.print_json(["adaptive", "forced-sdpa"], made_up())
    whole = json.loads(capsys.readouterr().out)
    assert whole["policies"]["adaptive"]["tokens_per_s"] == 100.0
    assert whole["policies"]["forced-sdpa"]["ratios"] == [0.5]
    assert whole["partings"][0]["at"] == 5
    compare.print_jsonl(["adaptive", "forced-sdpa"], made_up())
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == whole["rounds"]


def test_the_steps_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    path = tmp_path / "steps.png"
    compare.plotter(str(path))(["adaptive", "forced-sdpa"], made_up())
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ChatError, match=r"ends in \.png"):
        compare.plotter("steps.txt")
    with pytest.raises(ChatError, match="in a directory that exists"):
        compare.plotter(str(tmp_path / "no" / "steps.png"))
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ChatError, match="cannot write"):
        compare.plotter(str(tmp_path / "folder.png"))(["adaptive"], made_up())
