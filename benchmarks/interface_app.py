"""The app on a stand-in for the engine that streams text at a given rate; run by interface.py.

``python benchmarks/interface_app.py FOLDER RATE`` opens it on the chats in FOLDER: each prompt is
answered with RATE tokens a second, a prompt of "code" with 5,000 lines of it. ``FOLDER day`` runs
one day's use without a terminal and prints how many bytes memory has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import pickle
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from pkvchat.chats import Chat
from pkvchat.messages import (
    Delta,
    Event,
    Finished,
    Pages,
    Ready,
    Request,
    Started,
    Steps,
    Stop,
    Submit,
)
from pkvchat.open_chat import OpenChat
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams
from pkvchat.settings import Settings
from pkvchat.steps import StepRecord
from pkvchat.store import ChatStore
from pkvchat.tui.app import ChatApp
from pkvchat.tui.composer import Composer
from pkvchat.tui.frame_pace import FramePace

FRAME_S = 1 / 10  # as the engine process sends
CODE_LINES = 5000
CODE_END = "end_of_code"
ANSWERS_A_DAY = 24 * 60  # one a minute
TOKENS_AN_ANSWER = 300
FRAMES_AN_ANSWER = 5
TURNS_A_CHAT = 10
READY = Ready(
    "stand-in", "none", "none", 1 << 20, 1 << 16, 16, "adaptive", {"split": "", "sdpa": ""}
)


def words(seed: int) -> Iterator[str]:
    """Markdown without end, in lower case and one token at a time."""
    rng = random.Random(seed)
    for number in range(1 << 62):
        word = "".join(rng.choices("abcdefghiklmnoprstu", k=rng.randint(2, 8)))
        end = "\n\n" if number % 60 == 59 else " "
        yield f"**{word}**{end}" if number % 20 == 7 else word + end


def code() -> Iterator[str]:
    """A fenced block, a line a fragment."""
    yield "```python\n"
    for number in range(CODE_LINES):
        yield f"value_{number} = compute({number}, 'text')  # a comment on it\n"
    yield f"{CODE_END} = True\n"


def step(number: int, batch: int) -> StepRecord:
    lengths = tuple(1000 + number for _ in range(batch))
    predicted = {"split": 41.0, "workqueue": 47.0, "sdpa": 130.0}
    reason = "split is predicted 1.15x as fast as workqueue"
    return StepRecord(
        number, "split", reason, batch, lengths, 4, predicted, 9.8, 102.0 * batch, 500, 65536
    )


class StandIn:
    """Has EngineClient's interface. Events go through pickle, as they do from a process."""

    def __init__(self, folder: Path, rate: float) -> None:
        self.options = EngineOptions()
        self._folder = folder
        self._rate = rate
        self._streams: dict[str, Iterator[str]] = {}
        self._news: list[Event] = [READY]
        self._lock = threading.Lock()
        self._last = time.monotonic()
        self._due = 0.0
        self._steps = 0

    def send(self, request: Request) -> None:
        with self._lock:
            match request:
                case Submit(chat_id, messages):
                    asked = messages[-1].content
                    self._streams[chat_id] = code() if asked == "code" else words(len(asked))
                    self._news += [Started(chat_id, 100, 0), Pages(500, 0, 65536)]
                case Stop(chat_id) if self._streams.pop(chat_id, None):
                    self._news.append(Finished(chat_id, "cancelled", 100, 1, 0.1, 1.0))

    def events(self, timeout: float | None = None) -> list[Event]:
        time.sleep(FRAME_S)
        with self._lock:
            events, self._news = self._news, []
            now = time.monotonic()
            self._due += self._rate * (now - self._last)
            self._last = now
            count, self._due = int(self._due), self._due % 1
            if self._streams and count:
                events += self._stream(count)
        sent: list[Event] = pickle.loads(pickle.dumps(events))
        return sent

    def _stream(self, count: int) -> Iterator[Event]:
        for chat_id, stream in list(self._streams.items()):
            tokens = [token for _, token in zip(range(count), stream, strict=False)]
            yield Delta(chat_id, "".join(tokens), len(tokens))
            if len(tokens) < count:
                del self._streams[chat_id]
                yield Finished(chat_id, "stop", 100, CODE_LINES, 0.1, self._rate)
                (self._folder / "sent").write_text(str(time.monotonic()))
        self._steps += count
        batch = max(len(self._streams), 1)
        yield Steps(tuple(step(self._steps + i, batch) for i in range(count)))

    def start(self) -> None: ...
    def close(self) -> None: ...


def make_app(folder: Path, rate: float) -> ChatApp:
    store = ChatStore(folder / "chats.db")
    client = StandIn(folder, rate)
    return ChatApp(client, SamplingParams(), Settings(), store)  # type: ignore[arg-type]


async def day(folder: Path) -> int:
    """Bytes that the process has grown by, after a twentieth of the day has warmed it up."""
    app = make_app(folder, rate=0)
    app._pace = FramePace(clock=itertools.count().__next__)  # every frame is due at once
    process = psutil.Process()
    before = 0
    async with app.run_test(size=(120, 40)):
        app.session.apply(READY)
        for number in range(ANSWERS_A_DAY):
            if number == ANSWERS_A_DAY // 20:
                before = process.memory_info().rss
            if number % TURNS_A_CHAT == 0:
                app.open_tab(OpenChat(Chat()))
                if len(app.tabs) > 8:
                    app.go_to(0)
                    app.command("close_chat")
                    app.go_to(len(app.tabs) - 1)
            app.composer.post_message(Composer.Sent(f"question {number}"))
            while not app.tab.busy:
                await asyncio.sleep(0.005)
            await _answer(app, number)
            if number % 7 == 0:
                app.go_to(number % len(app.tabs))
        return process.memory_info().rss - before


async def _answer(app: ChatApp, number: int) -> None:
    """One whole answer in the chat in view."""
    chat_id, stream = app.tab.chat.id, words(number)
    app.session.apply(Started(chat_id, 100, 0))
    count = TOKENS_AN_ANSWER // FRAMES_AN_ANSWER
    for frame in range(FRAMES_AN_ANSWER):
        text = "".join(token for _, token in zip(range(count), stream, strict=False))
        app.session.apply(Delta(chat_id, text, count))
        first = number * TOKENS_AN_ANSWER + frame * count
        app.session.apply(Steps(tuple(step(first + i, 1) for i in range(count))))
        while app._frame_due:
            await asyncio.sleep(0.005)
    app.session.apply(Finished(chat_id, "stop", 100, TOKENS_AN_ANSWER, 0.1, 100.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("rate", metavar="RATE", help="tokens a second, or day")
    args = parser.parse_args()
    if args.rate == "day":
        print(asyncio.run(day(args.folder)))
        return
    try:
        rate = float(args.rate)
    except ValueError:
        parser.error(f"{args.rate!r} must be a number, or day")
    make_app(args.folder, rate).run()


if __name__ == "__main__":
    main()
