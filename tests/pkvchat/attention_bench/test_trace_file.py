"""Trace files: what is read, and how what is wrong is named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkvchat.attention_bench.trace_file import MAX_TOKENS, read_trace
from pkvchat.attention_bench.traces import Request
from pkvchat.errors import ChatError


@pytest.fixture
def trace(tmp_path):
    """trace(text, suffix) writes a file and returns its path."""

    def write(text, suffix="csv"):
        path = tmp_path / f"trace.{suffix}"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize(
    "text",
    [
        "prompt_len,decode_len,arrival\n100,5,0\n200,6,3\n",
        "prompt,decode,arrival_step\n100,5,0\n200,6,3\n",
        "arrival, decode_len, id, prompt\n0, 5, a, 100\n3, 6, b, 200\n",
        "\ufeffprompt,decode,arrival\r\n100,5,\r\n200,6,3\r\n",
    ],
)
def test_csv_with_either_columns(trace, text):
    assert read_trace(trace(text)) == [Request(100, 5, 0), Request(200, 6, 3)]


def test_json_with_either_columns(trace):
    rows = [{"prompt_len": 100, "decode": 5}, {"prompt": "200", "decode_len": 6, "arrival_step": 3}]
    assert read_trace(trace(json.dumps(rows), "json")) == [Request(100, 5, 0), Request(200, 6, 3)]


requests = st.lists(
    st.builds(
        Request, st.integers(1, MAX_TOKENS), st.integers(1, MAX_TOKENS), st.integers(0, 10**6)
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=30, deadline=None)
@given(requests=requests)
def test_what_is_written_is_read(tmp_path_factory, requests):
    path = tmp_path_factory.mktemp("traces") / "t.csv"
    lines = [f"{r.prompt},{r.decode},{r.arrival}\n" for r in requests]
    path.write_text("prompt_len,decode_len,arrival\n" + "".join(lines))
    assert read_trace(path) == requests
    rows = [{"prompt": r.prompt, "decode": r.decode, "arrival": r.arrival} for r in requests]
    other = path.with_suffix(".json")
    other.write_text(json.dumps(rows))
    assert read_trace(other) == requests


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prompt_len,decode_len\n10,5\n-3,5\n", "row 2, column prompt_len: '-3' is not a whole"),
        ("prompt,decode\n10,0\n", "row 1, column decode: '0' is not a whole number from 1"),
        ("prompt,decode\n99999999999,5\n", "row 1, column prompt: '99999999999' is not"),
        ("prompt,decode\n" + "9" * 5000 + ",5\n", "row 1, column prompt: '9999"),
        ("prompt,decode\n10.5,5\n", "row 1, column prompt: '10.5' is not a whole number"),
        ("prompt,decode\n1_6,5\n", "row 1, column prompt: '1_6' is not a whole number"),
        ("prompt,decode\n١٦,5\n", "row 1, column prompt: '١٦' is not a whole number"),
        ("prompt,decode\nten,5\n", "row 1, column prompt: 'ten' is not a whole number"),
        ("prompt,decode\n10\n", "row 1: no value in column decode_len or decode"),
        ("prompt,decode,arrival\n10,5,-1\n", "row 1, column arrival: '-1' is not"),
        ("length,decode\n10,5\n", "no column prompt_len or prompt; the columns are length, decode"),
        ("prompt,tokens\n10,5\n", "no column decode_len or decode"),
        ("", "no column prompt_len or prompt; the columns are none"),
        ("prompt,decode\n", "has no requests"),
        (b"prompt,decode\n\xff,5\n", "is not UTF-8: byte 0xff at 14"),
        (b"prompt,decode\n1,\x00\n", "trace.csv"),
    ],
)
def test_a_wrong_csv_names_the_row_and_the_column(trace, text, said):
    with pytest.raises(ChatError) as error:
        read_trace(trace(text))
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"prompt": 1, "decode": 2}, {"prompt": -1, "decode": 2}]', "row 2, column prompt: -1"),
        ('[{"prompt": true, "decode": 2}]', "row 1, column prompt: True is not"),
        ('[{"prompt": 1.0, "decode": 2}]', "row 1, column prompt: 1.0 is not"),
        ('[{"prompt": NaN, "decode": 2}]', "row 1, column prompt: nan is not"),
        ('[{"decode": 2}]', "row 1: no value in column prompt_len or prompt"),
        ('[{"prompt": [1], "decode": 2}]', "row 1, column prompt: [1] is not"),
        ("[7]", "row 1: 7 is not an object"),
        ('{"prompt": 1}', "holds a dict: give a list of objects"),
        ("[]", "has no requests"),
        ("[", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_wrong_json_names_the_row_and_the_column(trace, text, said):
    with pytest.raises(ChatError) as error:
        read_trace(trace(text, "json"))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ChatError, match=r"cannot read the trace file .*No such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(ChatError, match="cannot read the trace file"):
        read_trace(tmp_path)


def test_a_file_that_never_ends(trace):
    with pytest.raises(ChatError, match="more than 16777216 bytes"):
        read_trace(trace(b"prompt,decode\n" + b"1,1\n" * (1 << 22)))
