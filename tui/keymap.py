"""The app's keys, one table: bindings, the settings file's names and the help all read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from textual.binding import Binding, BindingType

from pkvchat.errors import UsageError


@dataclass(frozen=True)
class Key:
    """name: what the settings file calls it, and the app's action."""

    name: str
    keys: str
    what: str


KEYS = (
    Key("new_chat", "ctrl+t", "new chat"),
    Key("close_chat", "ctrl+w", "close chat"),
    Key("previous_chat", "ctrl+pageup", "previous chat"),
    Key("next_chat", "ctrl+pagedown", "next chat"),
    Key("stop", "escape", "stop the answer"),
    Key("retry", "ctrl+r", "answer again; restart an engine that died"),
    Key("toggle_panel", "f3", "show or hide the panel"),
    Key("interrupt", "ctrl+c", "copy, stop, clear, or quit when pressed twice"),
    Key("quit", "ctrl+q", "quit"),
)


def bindings() -> list[BindingType]:
    """For the app: all of them before any widget's own."""
    named: list[BindingType] = [
        Binding(key.keys, key.name, key.what, id=key.name, priority=True, show=False)
        for key in KEYS
    ]
    numbered: list[BindingType] = [
        Binding(f"alt+{n}", f"go_to({n - 1})", f"chat {n}", priority=True, show=False)
        for n in range(1, 10)
    ]
    return named + numbered


def checked(keys: Mapping[str, str]) -> dict[str, str]:
    """A person's keys by action name. Raises UsageError for an action there is not."""
    known = {key.name for key in KEYS}
    for name in keys:
        if name not in known:
            raise UsageError(
                f"keys.{name}: no such action; the actions are {', '.join(sorted(known))}"
            )
    return dict(keys)


def shown(keys: str) -> str:
    """``ctrl+t`` as a person reads it: ^T."""
    first = keys.split(",")[0]
    return first.replace("ctrl+", "^").replace("escape", "Esc").replace("page", "Pg").title()
