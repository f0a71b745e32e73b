"""The chat without an app: prompts in, the model's text out, all else on standard error."""

from __future__ import annotations

from collections.abc import Iterator

from .clean import message
from .commands import COMMANDS as SHARED
from .commands.command import Command, CommandError, whole
from .commands.slash import is_command, to_prompt
from .commands.table import CommandTable
from .conversation import Conversation, say
from .errors import INTERRUPTED, ChatError
from .line_input import line_reader
from .options import MAX_PROMPT
from .settings import Settings


def _open(conversation: Conversation, number: str) -> None:
    conversation.open_found(whole(number))


COMMANDS: CommandTable[Conversation] = CommandTable(
    (*SHARED, Command("open_chat", "open a chat that /chats lists", _open, "", "open", "NUMBER")),
    elsewhere="the app has more",
)


def run(settings: Settings, prompt: str | None) -> int:
    """Answer ``prompt``, or each line of standard input; returns the exit code."""
    conversation = Conversation(settings, COMMANDS)
    try:
        if prompt is not None:
            return INTERRUPTED if conversation.answer(prompt) == "cancelled" else 0
        return _take_lines(conversation)
    finally:
        conversation.close()


def _take_lines(conversation: Conversation) -> int:
    """Returns 1 if any line could not be answered or carried out."""
    code = 0
    for line in _lines(conversation):
        try:
            if is_command(line):
                command, argument = COMMANDS.find(line)
                command.run(conversation, argument)
            else:
                conversation.answer(to_prompt(line))
        except (ChatError, CommandError) as error:
            say(f"pkvchat: {message(error)}")
            code = 1
        if conversation.left:
            break
    return code


def _lines(conversation: Conversation) -> Iterator[str]:
    """The lines of standard input that say something."""
    read = line_reader(lambda start: COMMANDS.completions(conversation, start))
    number = 0
    while raw := read():
        number += 1
        if len(raw) > MAX_PROMPT:
            raise ChatError(f"line {number} has more than {MAX_PROMPT} bytes: shorten it")
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            say(
                f"note: line {number} is not UTF-8 (byte {raw[error.start]:#04x} at "
                f"{error.start}); what can't be read is replaced by U+FFFD"
            )
            line = raw.decode("utf-8", errors="replace")
        if line.strip():
            yield line.rstrip("\r\n")
