"""All commands of the app in one table, and the keys they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from textual.binding import Binding, BindingType

from pkvchat.commands import COMMANDS as SHARED
from pkvchat.commands.command import Command
from pkvchat.commands.host import Host
from pkvchat.commands.registry import Registry
from pkvchat.errors import UsageError

from . import answer_commands, chat_commands, settings_commands, view_commands

if TYPE_CHECKING:
    from .app import ChatApp


def _for_app(command: Command[Host]) -> Command[ChatApp]:
    c = command
    return Command(
        c.name,
        c.what,
        lambda app, argument: c.run(app.host, argument),
        c.keys,
        c.slash,
        c.argument,
        lambda app, start: c.complete(app.host, start),
    )


COMMANDS: Registry[ChatApp] = Registry(
    [
        *chat_commands.COMMANDS,
        *map(_for_app, SHARED),
        *answer_commands.COMMANDS,
        *view_commands.COMMANDS,
        *settings_commands.COMMANDS,
    ]
)


def bindings() -> list[BindingType]:
    """For the app: all of them before any widget's own."""
    named: list[BindingType] = [
        Binding(c.keys, f"command('{c.name}')", c.what, id=c.name, priority=True, show=False)
        for c in COMMANDS.by_name.values()
        if c.keys
    ]
    numbered: list[BindingType] = [
        Binding(f"alt+{n}", f"go_to({n - 1})", f"chat {n}", priority=True, show=False)
        for n in range(1, 10)
    ]
    return named + numbered


def checked_keys(keys: Mapping[str, str]) -> dict[str, str]:
    """A person's keys by command name. Raises UsageError for a command that has no key."""
    known = sorted(command.name for command in COMMANDS.by_name.values() if command.keys)
    for name in keys:
        if name not in known:
            raise UsageError(f"keys.{name}: no such action; the actions are {', '.join(known)}")
    return dict(keys)


def shown_key(keys: str) -> str:
    """``ctrl+pageup,f9`` as a person reads it: ^PgUp."""
    names = {"ctrl": "^", "alt": "Alt+", "shift": "Shift+", "escape": "Esc"}
    names |= {"pageup": "PgUp", "pagedown": "PgDn"}
    return "".join(names.get(part, part.capitalize()) for part in keys.split(",")[0].split("+"))
