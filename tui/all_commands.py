"""All commands of the app in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkvchat.commands import COMMANDS as SHARED
from pkvchat.commands.command import Command
from pkvchat.commands.host import Host
from pkvchat.commands.table import CommandTable

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


COMMANDS: CommandTable[ChatApp] = CommandTable(
    [
        *chat_commands.COMMANDS,
        *map(_for_app, SHARED),
        *answer_commands.COMMANDS,
        *view_commands.COMMANDS,
        *settings_commands.COMMANDS,
    ]
)
