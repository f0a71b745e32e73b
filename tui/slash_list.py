"""The commands that what is being typed may become, above the composer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text
from textual.widgets import OptionList

from pkvchat.commands.command import Command
from pkvchat.commands.slash import is_command

from .all_commands import COMMANDS

if TYPE_CHECKING:
    from .app import ChatApp

_USAGE_CELLS = 22


class SlashList(OptionList, can_focus=False):
    """There while the name of a slash command is typed. The keys stay the composer's.

    Not called CommandList, whose style in Textual's palette would hide it.
    """

    def __init__(self) -> None:
        super().__init__(id="commands", compact=True, markup=False)
        self.display = False
        self._left = ""  # a text that it is not for, nor for any that goes on from it
        self._listed: list[Command[ChatApp]] = []

    def follow(self, text: str) -> None:
        """``text`` is what the composer holds now."""
        if not self._left or not text.startswith(self._left):
            self._left = ""
        named = is_command(text) and not self._left and len(text.split(" ")) == 1
        commands = COMMANDS.named(text[1:]) if named else []
        if commands != self._listed:
            self._listed = commands
            self.set_options(
                Text.assemble(f"{command.usage:<{_USAGE_CELLS}}", (command.what, Style(dim=True)))
                for command in commands
            )
        self.display = bool(commands)

    def leave(self, text: str) -> None:
        """Away while the composer's text begins with ``text``."""
        self._left = text
        self._listed = []  # no row stays highlighted for the next time
        self.display = False

    def line(self) -> str:
        """What to type for the command that is highlighted, else for the first."""
        command = self._listed[self.highlighted or 0]
        return f"/{command.slash} " if command.argument else f"/{command.slash}"
