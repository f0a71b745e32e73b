"""All commands in one table, and how keys, slashes and completion look into it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from textual.binding import Binding, BindingType

from pkvchat.errors import UsageError

from . import answer_commands, chat_commands, engine_commands, view_commands
from .command import Command

COMMANDS: dict[str, Command] = {
    command.name: command
    for module in (chat_commands, answer_commands, engine_commands, view_commands)
    for command in module.COMMANDS
}
SLASHES = {command.slash: command for command in COMMANDS.values() if command.slash}
_TAKES_PATH = ("/read ", "/load ", "/export ", "/model ")


def bindings() -> list[BindingType]:
    """For the app: all of them before any widget's own."""
    named: list[BindingType] = [
        Binding(c.keys, f"command('{c.name}')", c.what, id=c.name, priority=True, show=False)
        for c in COMMANDS.values()
        if c.keys
    ]
    numbered: list[BindingType] = [
        Binding(f"alt+{n}", f"go_to({n - 1})", f"chat {n}", priority=True, show=False)
        for n in range(1, 10)
    ]
    return named + numbered


def checked_keys(keys: Mapping[str, str]) -> dict[str, str]:
    """A person's keys by command name. Raises UsageError for a command that has no key."""
    known = sorted(command.name for command in COMMANDS.values() if command.keys)
    for name in keys:
        if name not in known:
            raise UsageError(f"keys.{name}: no such action; the actions are {', '.join(known)}")
    return dict(keys)


def completions(text: str) -> list[str]:
    """What ``text``, the start of a slash command, may go on to be."""
    if not text.startswith("/") or "\n" in text:
        return []
    if " " not in text:
        return sorted(f"/{slash}" for slash in SLASHES if slash.startswith(text[1:]))
    if not text.startswith(_TAKES_PATH):
        return []
    head, _, typed = text.partition(" ")
    folder, _, start = typed.rpartition("/")
    base = Path(folder or ("/" if typed.startswith("/") else ".")).expanduser()
    prefix = f"{folder}/" if "/" in typed else ""
    try:
        found = sorted(p for p in base.iterdir() if p.name.startswith(start))
    except OSError:
        return []
    hidden = start.startswith(".")
    return [
        f"{head} {prefix}{path.name}{'/' if path.is_dir() else ''}"
        for path in found
        if hidden or not path.name.startswith(".")
    ]


def shown_key(keys: str) -> str:
    """``ctrl+pageup,f9`` as a person reads it: ^PgUp."""
    names = {"ctrl": "^", "alt": "Alt+", "shift": "Shift+", "escape": "Esc"}
    names |= {"pageup": "PgUp", "pagedown": "PgDn"}
    return "".join(names.get(part, part.capitalize()) for part in keys.split(",")[0].split("+"))
