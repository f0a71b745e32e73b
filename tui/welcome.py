"""What an empty chat says."""

from __future__ import annotations

from .keymap import Keymap

_FIRST = (
    "Welcome. The model runs on this machine, and nothing you write leaves it.",
    "Chats are saved while you type; the next start brings them back.",
    "The default model is tiny and often wrong: /model NAME goes on with another.",
    "",
)


def welcome(keymap: Keymap, *, first: bool) -> list[str]:
    """Hints with the keys in force. first: nothing was ever saved here."""
    hints = (
        ("", "Enter sends, Ctrl+J makes a new line"),
        ("stop", "stops an answer"),
        ("new_chat", "opens another chat; chats answer side by side"),
        ("toggle_panel", "shows or hides the panel"),
        ("palette", "has all commands"),
        ("help", "lists them with their keys"),
    )
    lines = [f"{keymap.shown(name) if name else ''} {what}.".strip() for name, what in hints]
    return ["", *(_FIRST if first else ()), *lines]
