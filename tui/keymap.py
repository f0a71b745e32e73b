"""Which key runs which command: the defaults, and what a person wants in their place."""

from __future__ import annotations

from collections.abc import Mapping

from textual.binding import Binding, BindingType
from textual.keys import Keys, key_to_character

from pkvchat.errors import UsageError

from .all_commands import COMMANDS

_MODIFIERS = {"ctrl", "alt", "shift", "super", "hyper", "meta"}
_NAMED = {key.value.rpartition("+")[2] for key in Keys}
_TYPING = {"space", "enter", "backspace", "delete", "tab", "up", "down", "left", "right"}
_SHORT = {"ctrl": "^", "alt": "Alt+", "shift": "Shift+", "escape": "Esc"}
_SHORT |= {"pageup": "PgUp", "pagedown": "PgDn"}


def bindings() -> list[BindingType]:
    """Of all commands, before any widget's own. One without a key has a name that no terminal
    sends, for a person's key to replace."""
    return [
        Binding(
            command.keys or f"unbound_{command.name}",
            f"command('{command.name}')",
            command.what,
            id=command.name,
            priority=True,
            show=False,
        )
        for command in COMMANDS.by_name.values()
    ]


class Keymap:
    """mine: by command name, as the settings file has it. Raises UsageError where that is wrong."""

    def __init__(self, mine: Mapping[str, str]) -> None:
        owners: dict[str, str] = {}
        for name, keys in mine.items():
            if name not in COMMANDS.by_name:
                known = ", ".join(sorted(COMMANDS.by_name))
                raise UsageError(f"keys.{name}: no such command; the commands are {known}")
            for key in keys.split(","):
                _check(name, key)
                if owners.setdefault(key, name) != name:
                    raise UsageError(f"keys.{name} and keys.{owners[key]} are both {key!r}")
        self.mine = dict(mine)
        self._keys = {
            command.name: mine.get(command.name)
            or ",".join(key for key in command.keys.split(",") if key not in owners)
            for command in COMMANDS.by_name.values()
        }

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Name, what it does, key and slash form of each command that is to be listed."""
        commands = [command for command in COMMANDS.by_name.values() if command.what]
        return [(c.name, c.what, self.shown(c.name), c.usage) for c in commands]

    def shown(self, name: str) -> str:
        """The first key of command ``name`` as a person reads it: ^PgUp; "" where it has none."""
        first = self._keys[name].split(",")[0]
        return "".join(_SHORT.get(part, part.capitalize()) for part in first.split("+"))


def _check(name: str, keys: str) -> None:
    *modifiers, key = keys.split("+")
    character = key_to_character(key) or ""
    if not _MODIFIERS.issuperset(modifiers) or not (key in _NAMED or character):
        raise UsageError(f"keys.{name} = {keys!r} is no key; write it as ctrl+n, alt+left or f9")
    printed = character.isprintable() and character and set(modifiers) <= {"shift"}
    if keys in _TYPING or printed:
        raise UsageError(f"keys.{name} = {keys!r} is needed for typing; put ctrl+ before it")
