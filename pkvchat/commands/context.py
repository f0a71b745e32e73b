"""Commands for a context that fills up: sum up, drop, or have more of it."""

from __future__ import annotations

from pkvchat.chats import Chat, Message
from pkvchat.open_chat import OpenChat

from .command import Command, CommandError, whole
from .host import Host


def summarise(host: Host, _: str) -> None:
    """In a copy, whose summary the model writes and reads on from; the chat itself stays."""
    source = host.current
    if source.busy or not turns_read(source.chat):
        raise CommandError("there is nothing to sum up yet, or an answer runs")
    host.open(source.chat.fork(len(source.chat.messages), "summary"))
    host.current.chars_per_token = source.chars_per_token
    host.current.summarise()
    host.submit()


def turns_read(chat: Chat) -> list[int]:
    """The places of the prompts that the model reads."""
    start = chat.first_read()
    return [i for i, m in enumerate(chat.messages) if m.role == "user" and i >= start]


def droppable(chat: OpenChat) -> int:
    """How many turns /drop takes when no number is given: the older half, never all."""
    return len(turns_read(chat.chat)) // 2


def drop(host: Host, count: str) -> None:
    """The model stops reading the older half of the turns, or COUNT of them; a line says so."""
    chat, read = host.current, turns_read(host.current.chat)
    number = whole(count) if count else droppable(chat)
    if chat.busy or not 0 < number < len(read):
        raise CommandError("/drop needs a number of turns smaller than those the model reads")
    messages = chat.chat.messages
    first = messages[chat.chat.first_read()]
    what = f"the {number} turns above" if number > 1 else "the turn above"
    line = f"the model no longer reads {what}{', nor their summary' if first.sums_up else ''}"
    messages.insert(read[number], Message.of("cut", line))
    chat.full = False
    host.changed()


def context(host: Host, tokens: str) -> None:
    if whole(tokens) < 0:
        raise CommandError("/context needs a number of tokens; 0 means the model's own limit")
    host.restart(context=whole(tokens))


COMMANDS: tuple[Command[Host], ...] = (
    Command("summarise", "go on in a copy, from a summary", summarise, slash="summarise"),
    Command(
        "drop", "let the model forget the oldest turns", drop, slash="drop", argument="[COUNT]"
    ),
    Command("context", "restart with another context", context, slash="context", argument="N"),
)
