"""The log of decode steps: what it replaces, and pipes."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from pkvchat.options import EngineOptions
from pkvchat.service import ChatService
from pkvchat.steps import StepRecord, StepWriter

RECORD = StepRecord(1, "split", "", 2, (9, 9), 1, {"split": 3.0}, 4.0, 5.0, 1, 9)


def test_a_former_log_goes_with_the_first_step(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    for _ in range(2):
        before = path.read_text() if path.exists() else ""
        writer = StepWriter(str(path))
        assert path.read_text() == before
        writer.write(RECORD)
        writer.write(RECORD)
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 1]
        writer.close()


def test_a_pipes_reader_gets_every_step(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # it is there before the writer
    writer = StepWriter(str(path))
    os.set_blocking(reader, True)
    lines: list[str] = []
    thread = threading.Thread(target=lambda: lines.extend(os.fdopen(reader)), daemon=True)
    thread.start()
    writer.write(RECORD)
    writer.write(RECORD)
    writer.close()
    thread.join(60)
    assert [json.loads(line)["step"] for line in lines] == [1, 1]


def test_a_pipe_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="nobody reads this pipe"):
        StepWriter(str(path))
    options = EngineOptions(device="cpu", steps_path=str(path))
    with pytest.raises(ValueError, match=r"--steps: cannot write .*pipe: nobody reads this pipe;"):
        ChatService(options, lambda stage, done, total: None)


@pytest.mark.parametrize("contents", [b"GGUF\x03\x00", b"#!/bin/sh\n", b"\x00\x01"])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(contents)
    options = EngineOptions(model=str(path), device="cpu", steps_path=str(path))
    with pytest.raises(ValueError, match=r"--steps: cannot write .*gguf: .*is no log of steps;"):
        ChatService(options, lambda stage, done, total: None)
    assert path.read_bytes() == contents
