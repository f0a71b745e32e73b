"""What a command is: one entry serves the keys, the palette, the slash and the help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .app import ChatApp


class CommandError(Exception):
    """A command cannot do what was asked; ``str(e)`` is the one line to show."""


@dataclass(frozen=True)
class Command:
    """run: takes the app and the text after the slash command's name ("" from key or palette).

    keys: Textual's key names, "" for none. slash: the name after "/", "" for none.
    argument: how the help shows what follows the slash name.
    """

    name: str
    what: str
    run: Callable[[ChatApp, str], None]
    keys: str = ""
    slash: str = ""
    argument: str = ""
