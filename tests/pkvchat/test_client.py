"""The engine in its own process: answers, and what is said when it dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pkvchat.client import EngineClient
from pkvchat.messages import (
    ChatMessage,
    Counted,
    CountTokens,
    Delta,
    Died,
    Event,
    Failed,
    Finished,
    Loading,
    Ready,
    Steps,
    Submit,
)
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams

HELLO = (ChatMessage("user", "Say hello."),)
SHORT = SamplingParams(temperature=0.0, max_tokens=8)


@pytest.fixture
def client() -> Iterator[EngineClient]:
    client = EngineClient(EngineOptions(device="cpu", dtype="f32", context=512))
    yield client
    client.close()


def until(client: EngineClient, wanted: type[Event], count: int = 1) -> list[Event]:
    """What is said up to the ``count``-th event of type ``wanted``."""
    events: list[Event] = []
    end = time.monotonic() + 60
    while sum(isinstance(event, wanted) for event in events) < count:
        assert time.monotonic() < end, events[-5:]
        assert wanted is Died or not any(isinstance(e, Died) for e in events), events[-3:]
        events += client.events(timeout=0.5)
    return events


def test_a_process_loads_answers_dies_and_comes_back(client: EngineClient) -> None:
    client.start()
    loading = until(client, Ready)
    assert any(isinstance(e, Loading) for e in loading)
    ready = loading[-1]
    assert isinstance(ready, Ready)
    assert ready.context == 512

    client.send(Submit("a", HELLO, SHORT))
    client.send(Submit("b", HELLO, SHORT))
    events = until(client, Finished, count=2)
    texts = {
        chat: "".join(e.text for e in events if isinstance(e, Delta) and e.chat_id == chat)
        for chat in "ab"
    }
    assert texts["a"] == texts["b"] != ""
    (prompt_tokens,) = {e.prompt_tokens for e in events if isinstance(e, Finished)}
    assert any(r.batch == 2 for e in events if isinstance(e, Steps) for r in e.records)

    assert client.pid is not None
    os.kill(client.pid, signal.SIGSTOP)  # as in a long step: sending must not wait for its end
    client.send(CountTokens("a", 1, (ChatMessage("user", "long " * 1_000_000),)))
    client.send(CountTokens("a", 2, HELLO))
    os.kill(client.pid, signal.SIGCONT)
    counted = until(client, Counted)
    while counted[-1].number < 2:
        counted = until(client, Counted)
    assert counted[-1] == Counted("a", 2, prompt_tokens)

    endless = SamplingParams(temperature=0.0)
    client.send(Submit("a", HELLO, endless))
    until(client, Delta)
    os.kill(client.pid, signal.SIGKILL)
    died = until(client, Died)[-1]
    assert isinstance(died, Died)
    assert "killed by signal 9" in died.message
    assert not psutil.pid_exists(client.pid)
    client.send(Submit("a", HELLO, SHORT))
    assert client.events(timeout=0) == []

    log = Path(died.message.rpartition(" ")[2])
    assert log.exists()  # it may say why
    client.close()
    client.start()
    client.send(Submit("a", HELLO, SHORT))  # queued while it loads
    events = until(client, Finished)
    assert "".join(e.text for e in events if isinstance(e, Delta)) == texts["a"]

    client.close()
    client.start()
    until(client, Ready)
    client.close()
    assert list(client.log.path.parent.iterdir()) == [log]
    log.unlink()

    client.start()
    until(client, Loading)
    loading_pid = client.pid
    assert loading_pid is not None
    client.close()  # at once, as nothing is lost
    assert not psutil.pid_exists(loading_pid)
    assert not client.log.path.parent.exists()


def test_a_model_that_is_not_there_is_one_line(client: EngineClient) -> None:
    client.options = EngineOptions(model="/nowhere/model.gguf")
    client.start()
    events = until(client, Died)
    (failed,) = [e for e in events if isinstance(e, Failed)]
    assert failed.fatal
    assert "/nowhere/model.gguf" in failed.message
    assert "\n" not in failed.message
