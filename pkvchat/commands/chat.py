"""Commands on the chat as a whole, and on what runs it."""

from __future__ import annotations

from pkvchat.chats import given_title
from pkvchat.errors import ChatError
from pkvchat.messages import Fork
from pkvchat.transfer import export_chat, import_chat

from .command import Command, CommandError, as_path, paths
from .host import Host


def clear(host: Host, _: str) -> None:
    host.clear()


def fork(host: Host, _: str) -> None:
    """A chat of its own with all up to the message that is meant, sharing its KV pages."""
    fork_at(host, host.place(), "fork")


def duplicate(host: Host, _: str) -> None:
    fork_at(host, len(host.current.chat.messages), "copy")


def fork_at(host: Host, end: int, kind: str) -> None:
    source = host.current
    if not source.chat.messages:
        raise CommandError("there is nothing to fork yet")
    target = source.chat.fork(end, kind)
    host.send(Fork(source.chat.id, target.id))
    host.open(target)
    host.current.chars_per_token = source.chars_per_token
    if end >= len(source.chat.messages):  # of a part, only the engine knows
        host.current.context_tokens = source.context_tokens
    host.changed()


def save(host: Host, _: str) -> None:
    host.say(f"saved in {host.save()}")


def rename(host: Host, title: str) -> None:
    shown = given_title(title)
    if shown:
        host.rename(shown)
    elif title or not host.ask_title():
        raise CommandError("/rename needs a title that can be seen")


def find(host: Host, words: str) -> None:
    """All saved chats, searched by any words said in them."""
    host.find(words)


def delete(host: Host, _: str) -> None:
    """For good; only asked for by name."""
    host.delete()


def export(host: Host, name: str) -> None:
    if not name:
        raise CommandError("/export needs a file name ending in .md or .json")
    path = as_path(name)
    try:
        export_chat(host.current.chat, path)
    except ChatError as error:
        raise CommandError(str(error)) from error
    host.say(f"exported to {path}")


def load(host: Host, name: str) -> None:
    if not name:
        raise CommandError("/load needs the name of a JSON file of messages")
    try:
        chat = import_chat(as_path(name))
    except ChatError as error:
        raise CommandError(str(error)) from error
    host.open(chat)


def show_help(host: Host, _: str) -> None:
    host.help()


def leave(host: Host, _: str) -> None:
    host.leave()


COMMANDS: tuple[Command[Host], ...] = (
    Command("clear_chat", "start afresh", clear, slash="clear"),
    Command("fork_chat", "fork this chat, at the chosen message if any", fork, slash="fork"),
    Command("duplicate_chat", "duplicate this chat", duplicate, slash="duplicate"),
    Command("find_chat", "find a saved chat", find, "ctrl+o", "chats", "[WORDS]"),
    Command("rename_chat", "rename this chat", rename, "f2", "rename", "[TITLE]"),
    Command("delete_chat", "delete this chat for good", delete, slash="delete"),
    Command("save_chat", "save this chat and say where", save, slash="save"),
    Command("export_chat", "write this chat to a file", export, "", "export", "FILE", paths),
    Command("load_chat", "open a chat from a JSON file", load, "", "load", "FILE", paths),
    Command("help", "list the commands", show_help, "f1", "help"),
    Command("quit", "quit", leave, "ctrl+q", "bye"),
)
