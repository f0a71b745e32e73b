"""What the driver makes of a terminal's bytes."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import struct
import sys
import termios

import pytest
from textual._xterm_parser import XTermParser
from textual.events import Key

from pkvchat.tui.all_commands import COMMANDS
from pkvchat.tui.driver import read_alt_digits, trust_terminal_size

_FIXED = {"escape": "\x1b", "shift+tab": "\x1b[Z"}
_FUNCTION = dict(zip([f"f{n}" for n in range(1, 5)], "PQRS", strict=True))
_TILDE = {"pageup": 5, "pagedown": 6, "f5": 15, "f6": 17, "f7": 18, "f8": 19, "f9": 20}
_ARROWS = {"up": "A", "down": "B", "right": "C", "left": "D"}
_MODIFIERS = {"alt": 3, "ctrl": 5}
_DEFAULT_KEYS = [
    key for command in COMMANDS.by_name.values() for key in command.keys.split(",") if key
]


def xterm(key: str) -> str:
    """What xterm sends for ``key`` unless a program asks for more."""
    modifier, _, name = key.rpartition("+")
    if key in _FIXED:
        return _FIXED[key]
    if key in _FUNCTION:
        return f"\x1bO{_FUNCTION[key]}"
    if name in _TILDE:
        return f"\x1b[{_TILDE[name]}" + (f";{_MODIFIERS[modifier]}~" if modifier else "~")
    if name in _ARROWS:
        return f"\x1b[1;{_MODIFIERS[modifier]}{_ARROWS[name]}"
    assert len(name) == 1, key
    return {"alt": f"\x1b{name}", "ctrl": chr(ord(name) & 0x1F)}[modifier]


@pytest.mark.parametrize("key", _DEFAULT_KEYS)
def test_an_ordinary_terminal_can_send_every_default_key(key: str) -> None:
    read_alt_digits()
    parser = XTermParser()
    events = [*parser.feed(xterm(key)), *parser.feed("")]
    assert [event.key for event in events if isinstance(event, Key)] == [key]


@pytest.mark.parametrize("columns", [90, 0])
def test_the_terminal_knows_its_size_better_than_the_environment(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it does not know it, as a serial line."""
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("4H", 30, columns, 0, 0))
    monkeypatch.setattr(sys, "__stdout__", os.fdopen(other, "w"))
    monkeypatch.setenv("COLUMNS", "1")
    monkeypatch.setenv("LINES", "1")
    trust_terminal_size()
    assert shutil.get_terminal_size() == ((90, 30) if columns else (1, 1))
    os.close(main)
