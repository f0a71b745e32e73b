"""The bars that the app is held to, measured through a terminal of its own, as a person meets it.

``python benchmarks/interface.py`` runs the app in a pseudo-terminal of 120x40, presses keys and
waits for what they bring to the screen. All but the last two run on a stand-in engine
(interface_app.py); those are the real program with the default model. ``--only NAME`` picks some,
``--pairs N`` says how often the app and plain mode take turns, ``--json FILE`` keeps the figures.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from interface_app import CODE_END, CODE_LINES

from pkvchat.chats import Chat
from pkvchat.store import ChatStore

HERE = Path(__file__).parent
COLUMNS, ROWS = 120, 40
ECHOES = "ðþßøæłđħŋœ"  # letters that nothing else on the screen has
PROMPT = "Write a long story about a lighthouse keeper."


@dataclass(frozen=True)
class Figure:
    """value against bar, both in ``unit``. holds: value may be at most the bar, or at least it."""

    name: str
    value: float
    bar: float
    unit: str
    at_least: bool = False

    @property
    def holds(self) -> bool:
        return self.value >= self.bar if self.at_least else self.value <= self.bar


class Terminal:
    """A program in a pseudo-terminal. Times are in seconds."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execve(command[0], list(command), environment)
        self.resize(COLUMNS, ROWS)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def until(self, text: str, seconds: float = 60) -> float:
        """Wait for ``text`` to be drawn; returns the time that it took."""
        wanted, seen = text.encode(), b""
        start = time.monotonic()
        while wanted not in seen:
            left = start + seconds - time.monotonic()
            if left <= 0 or not select.select([self._fd], [], [], left)[0]:
                raise TimeoutError(f"{text!r} was not drawn: {seen[-2000:]!r}")
            seen = seen[-len(wanted) :] + os.read(self._fd, 1 << 16)
        return time.monotonic() - start

    def rest(self, seconds: float) -> None:
        """Read what is drawn meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self._fd], [], [], left)[0]:
                os.read(self._fd, 1 << 16)

    def time(self, keys: str, text: str) -> float:
        """From a key to what it draws."""
        self.press(keys)
        return self.until(text)

    def processor_s(self) -> float:
        """That the program and its engine have used."""
        program = psutil.Process(self.pid)
        processes = [program, *program.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    def close(self) -> None:
        psutil.Process(self.pid).terminate()
        try:
            while os.read(self._fd, 1 << 16):
                pass
        except OSError:
            pass  # the other end is closed
        os.waitpid(self.pid, 0)
        os.close(self._fd)


@contextmanager
def app(
    chats: Sequence[tuple[Chat, int | None]], rate: float = 0
) -> Iterator[tuple[Terminal, Path]]:
    """The app over ``chats``, each with its place among the tabs, and answers at ``rate``."""
    with tempfile.TemporaryDirectory() as folder:
        store = ChatStore(Path(folder) / "chats.db")
        for chat, place in chats:
            store.save(chat, place)
        store.close()
        command = [sys.executable, str(HERE / "interface_app.py"), folder, str(rate)]
        terminal = Terminal(command, os.environ | {"TERM": "xterm-256color", "HOME": folder})
        try:
            terminal.until("F1")
            terminal.rest(1)
            yield terminal, Path(folder)
        finally:
            terminal.close()


def chat(title: str, turns: int, chars: int) -> Chat:
    """``turns`` questions and answers of ``chars`` characters in all; its last word is its title
    between dots."""
    made = Chat(title=title)
    for number in range(turns):
        made.add("user", f"question {number}")
        paragraph = f"answer {number} has some *words* and `code` in it. "
        text = (paragraph * (chars // turns // len(paragraph) + 1))[: chars // turns]
        made.add("assistant", text + "\n\n- a list\n- of two").version.reason = "stop"
    made.messages[-1].version.text += f"\n\n.{title}."
    return made


# --- the bars ------------------------------------------------------------------------------------


def open_long_chat() -> Iterator[Figure]:
    chats = [(chat("zebra", 500, 1_000_000), None), (chat("small", 2, 200), 0)]
    with app(chats) as (terminal, _):
        terminal.time("\x0f", "Search all chats")
        terminal.time("zebra", "just now")
        terminal.rest(0.5)
        terminal.press("\x1b[B")
        terminal.rest(0.2)
        took = terminal.time("\r", ".zebra.")
    yield Figure("a chat of 500 turns, 1 million characters, opens", took * 1e3, 1000, "ms")


def switch_tabs() -> Iterator[Figure]:
    chats = [(chat("zebra", 500, 1_000_000), 0), (chat("panda", 500, 1_000_000), 1)]
    page_up, page_down = "\x1b[5;5~", "\x1b[6;5~"
    with app(chats) as (terminal, _):
        times = []
        for keys, text in [(page_down, ".panda."), (page_up, ".zebra.")] * 10:
            times.append(terminal.time(keys, text))
            terminal.rest(0.2)
    yield Figure("switching tabs, the slowest of 20", max(times) * 1e3, 100, "ms")


def type_while_streaming() -> Iterator[Figure]:
    chats = [(chat(f"chat {number}", 20, 20_000), number) for number in range(8)]
    with app(chats, rate=100) as (terminal, _):
        for _ in chats:
            terminal.press("go\r")
            terminal.rest(0.3)
            terminal.press("\x1b[6;5~")
            terminal.rest(0.3)
        before, start = terminal.processor_s(), time.monotonic()
        times = []
        for number in range(60):
            if number % len(ECHOES) == 0:
                terminal.press("\x03")  # an empty line again: each letter is drawn once
                terminal.rest(0.4)
            times.append(terminal.time(ECHOES[number % len(ECHOES)], ECHOES[number % len(ECHOES)]))
            terminal.rest(0.08 + 0.013 * (number % 7))
        used = (terminal.processor_s() - before) / (time.monotonic() - start)
    ranked = sorted(times)
    what = "a key shows while 8 tabs stream at 100 tokens/s"
    yield Figure(f"{what}, p95 of 60", ranked[56] * 1e3, 50, "ms")
    yield Figure(f"{what}, the slowest", ranked[-1] * 1e3, 50, "ms")
    yield Figure("the interface's share of a core meanwhile", used * 100, 100, "%")


def focus_and_resize() -> Iterator[Figure]:
    with app([(chat("zebra", 500, 1_000_000), 0)]) as (terminal, _):
        focus = []
        for keys, text in [("\x1b[Z", "▐"), ("\t", "commands")] * 3:
            focus.append(terminal.time(keys, text))
            terminal.rest(0.3)
        terminal.press("\x1b[O")  # another window has the focus for a while
        terminal.rest(0.5)
        terminal.press("\x1b[I")
        terminal.rest(0.05)
        focus.append(terminal.time("ð", "ð"))
        resize = []
        for columns in (100, 140, 60, 120):
            terminal.rest(0.5)
            terminal.resize(columns, ROWS)
            resize.append(terminal.until(".zebra."))
    yield Figure("focus changes, the slowest of 7", max(focus) * 1e3, 300, "ms")
    yield Figure("the window is resized, the slowest of 4", max(resize) * 1e3, 300, "ms")


def stream_code() -> Iterator[Figure]:
    """At five times the bar's rate, so that falling behind would show sooner."""
    with app([], rate=500) as (terminal, folder):
        terminal.press("code\r")
        before, start = terminal.processor_s(), time.monotonic()
        terminal.until(CODE_END, seconds=120)
        drawn = time.monotonic()
        used = (terminal.processor_s() - before) / (drawn - start)
        behind = drawn - float((folder / "sent").read_text())
    what = f"{CODE_LINES:,} lines of code at 500 fragments/s"
    yield Figure(f"{what}: the last is drawn after", behind * 1e3, 600, "ms")
    yield Figure(f"{what}: share of a core", used * 100, 100, "%")


def use_for_a_day() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "interface_app.py"), folder, "day"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown = int(done.stdout) / 2**20
    yield Figure("memory grows in a day of an answer a minute", grown, 50, "MiB")


def rest_idle() -> Iterator[Figure]:
    with program([]) as terminal:
        terminal.until("F1")
        terminal.until("context", seconds=300)  # in the panel, once the model is there
        terminal.rest(5)
        before = terminal.processor_s()
        terminal.rest(20)
        used = (terminal.processor_s() - before) / 20
    yield Figure("the idle program with its engine, share of a core", used * 100, 1, "%")


def keep_tokens_per_s(pairs: int = 6) -> Iterator[Figure]:
    """The app and plain mode take turns, and at who goes first too."""
    ratios = []
    for number in range(pairs):
        rates = {}
        for mode in ((_in_app, _in_plain_mode), (_in_plain_mode, _in_app))[number % 2]:
            rates[mode] = mode()
        ratios.append(rates[_in_app] / rates[_in_plain_mode])
        print(f"  app {rates[_in_app]:.1f}, plain {rates[_in_plain_mode]:.1f} tokens/s", flush=True)
    share = statistics.median(ratios) * 100
    yield Figure(f"tokens/s of plain mode, median of {pairs} pairs", share, 97, "%", at_least=True)


@contextmanager
def program(flags: Sequence[str]) -> Iterator[Terminal]:
    """The real one, with the default model and no chats."""
    with tempfile.TemporaryDirectory() as folder:
        homes = dict.fromkeys(("XDG_DATA_HOME", "XDG_CONFIG_HOME"), folder)
        environment = os.environ | homes | {"TERM": "xterm-256color"}
        terminal = Terminal([sys.executable, "-m", "pkvchat", *flags], environment)
        try:
            yield terminal
        finally:
            terminal.close()


def _flags(steps: Path) -> list[str]:
    return ["--temp", "0", "-n", "300", "-c", "1024", "--steps", str(steps)]


def _in_app() -> float:
    with tempfile.TemporaryDirectory() as folder:
        steps = Path(folder) / "steps.jsonl"
        with program(_flags(steps)) as terminal:
            terminal.until("context", seconds=300)
            terminal.press(f"{PROMPT}\r")
            return _rate(steps, lambda: terminal.rest(0.01))


def _in_plain_mode() -> float:
    with tempfile.TemporaryDirectory() as folder:
        steps = Path(folder) / "steps.jsonl"
        command = [sys.executable, "-m", "pkvchat", "--no-tui", *_flags(steps)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(f"{PROMPT}\n")
        process.stdin.flush()
        try:
            return _rate(steps, lambda: time.sleep(0.01))
        finally:
            process.stdin.close()
            process.wait()


def _rate(steps: Path, wait: Callable[[], None]) -> float:
    """Steps a second by the clock on the wall, from the 20th to the 280th."""
    times = []
    for target in (20, 280):
        while not steps.exists() or steps.read_bytes().count(b"\n") < target:
            wait()
        times.append(time.monotonic())
    return 260 / (times[1] - times[0])


BARS = {
    "open": open_long_chat,
    "switch": switch_tabs,
    "type": type_while_streaming,
    "resize": focus_and_resize,
    "code": stream_code,
    "day": use_for_a_day,
    "idle": rest_idle,
    "speed": keep_tokens_per_s,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--only", action="append", choices=BARS, help="give it again for more")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    figures = []
    print("| what | measured | bar | holds |\n|---|---:|---:|---|")
    for name in args.only or BARS:
        bar = BARS[name]
        for figure in bar(args.pairs) if bar is keep_tokens_per_s else bar():
            figures.append(figure)
            sign = "≥" if figure.at_least else "≤"
            print(
                f"| {figure.name} | {figure.value:.1f} {figure.unit} | {sign} {figure.bar:g} | "
                f"{'yes' if figure.holds else 'no'} |",
                flush=True,
            )
    if args.json:
        args.json.write_text(
            json.dumps([asdict(f) | {"holds": f.holds} for f in figures], indent=1)
        )


if __name__ == "__main__":
    main()
