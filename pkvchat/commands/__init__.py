"""What a person can ask for by name, in the app and in plain mode alike.

``command.py`` says what a command is, ``host.py`` what it works on, ``table.py`` finds commands
by name and completes them. The others hold the commands that need no screen, all of them in
``COMMANDS``; the app adds its own.
"""

from . import answers, chat, context, engine, files
from .command import Command
from .host import Host

COMMANDS: tuple[Command[Host], ...] = (
    *chat.COMMANDS,
    *answers.COMMANDS,
    *files.COMMANDS,
    *context.COMMANDS,
    *engine.COMMANDS,
)
