"""Commands on prompts and answers."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pkvchat.chats import Message
from pkvchat.clean import typed
from pkvchat.messages import Stop
from pkvchat.open_chat import Phase

from .chat_commands import fork_at
from .command import Command, CommandError

if TYPE_CHECKING:
    from .app import ChatApp

_READ_LIMIT = 4_000_000  # bytes; more never fits a context


def stop(app: ChatApp, _: str) -> None:
    """Leave the transcript's cursor, else end this chat's answer; prompts that waited behind it
    return to the composer."""
    if app.transcript.cursor is not None:
        app.composer.focus()
        return
    tab = app.tab
    if not tab.busy:
        return
    app.put_back(tab, tab.take_back_queue())
    if tab.phase is Phase.WAITING and not app.session.state.ready:
        app.put_back(tab, tab.withdraw())
    else:
        app.session.client.send(Stop(tab.chat.id))
    app.changed(tab)


def retry(app: ChatApp, _: str) -> None:
    """Answer the last prompt again, the answers so far kept; or bring a dead engine back."""
    if app.session.state.dead:
        app.session.restart()
    elif app.tab.regenerate():
        app.session.submit(app.tab)
        app.transcript.action_scroll_end()
    else:
        raise CommandError("there is no prompt to answer again, or its answer still runs")


def browse(app: ChatApp, _: str) -> None:
    app.transcript.focus()


def under_cursor(app: ChatApp) -> tuple[int, Message]:
    """The message under the transcript's cursor, else the last answer."""
    messages = app.tab.chat.messages
    cursor = app.transcript.cursor
    if cursor is not None and cursor < len(messages):
        return cursor, messages[cursor]
    for index in reversed(range(len(messages))):
        if messages[index].role == "assistant":
            return index, messages[index]
    raise CommandError("there is no answer yet")


def show_version(step: int, app: ChatApp, _: str) -> None:
    """Another of the answers to one prompt; it is the one the model reads from then on."""
    message = under_cursor(app)[1]
    if app.tab.busy:
        raise CommandError("an answer runs; Esc stops it")
    message.chosen = (message.chosen + step) % len(message.versions)
    app.changed(app.tab)


def edit(app: ChatApp, _: str) -> None:
    """Change a prompt: a fork that ends before it, its text in the composer."""
    messages = app.tab.chat.messages
    cursor = app.transcript.cursor
    at = len(messages) - 1 if cursor is None else cursor
    while at >= 0 and messages[at].role != "user":
        at -= 1
    if at < 0:
        raise CommandError("there is no prompt to change yet")
    text = messages[at].text
    fork_at(app, at, "edit")
    app.composer.take(text)


def copy_message(app: ChatApp, _: str) -> None:
    app.copy(under_cursor(app)[1].text, "message")


def copy_code(app: ChatApp, _: str) -> None:
    """The last code block of the message."""
    blocks = under_cursor(app)[1].text.split("```")[1::2]
    if not blocks:
        raise CommandError("that message has no code block")
    app.copy(blocks[-1].partition("\n")[2], "code block")


def copy_chat(app: ChatApp, _: str) -> None:
    turns = [f"{m.role}: {m.text}" for m in app.tab.chat.messages if m.role != "note"]
    app.copy("\n\n".join(turns), "chat")


def system(app: ChatApp, text: str) -> None:
    chat = app.tab.chat
    if text:
        chat.system = text
        app.saver.soon(app.tab)
    app.note(app.tab, f"system prompt: {chat.system or 'none'}")


def drop(app: ChatApp, count: str) -> None:
    """The model stops reading the older half of the turns, or COUNT of them; a line says so."""
    messages = app.tab.chat.messages
    prompts = [i for i, m in enumerate(messages) if m.role == "user"]
    start = app.tab.chat.first_read()
    read = [i for i in prompts if i >= start]
    number = int(count) if count.isdecimal() else (len(read) + 1) // 2
    if app.tab.busy or len(read) < 2 or not 0 < number < len(read):
        raise CommandError("/drop needs a number of turns smaller than those the model reads")
    line = f"the model no longer reads the {number} turns above"
    messages.insert(read[number], Message.of("cut", line))
    app.changed(app.tab)


def raw(app: ChatApp, _: str) -> None:
    app.transcript.show_raw(not app.transcript.raw)


def fold(app: ChatApp, _: str) -> None:
    app.transcript.show_thoughts(not app.transcript.thoughts)


def read(app: ChatApp, name: str) -> None:
    """Put a file's text into the composer."""
    _read_files(app, [Path(name).expanduser()] if name else [])


def glob(app: ChatApp, pattern: str) -> None:
    paths = sorted(Path().glob(pattern)) if pattern and not Path(pattern).is_absolute() else []
    _read_files(app, [path for path in paths if path.is_file()])


def _read_files(app: ChatApp, paths: list[Path]) -> None:
    if not paths:
        raise CommandError("no file is named so here")
    parts = []
    for path in paths:
        if path.exists() and not path.is_file():  # reading a pipe or a device might never end
            raise CommandError(f"cannot read {path}: it is no file")
        try:
            if path.stat().st_size > _READ_LIMIT:
                raise CommandError(f"{path} has more than {_READ_LIMIT:,} bytes")
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise CommandError(f"cannot read {path}: {error.strerror}") from error
        parts.append(f"{path.name}:\n```\n{typed(text)}\n```\n")
    app.composer.put_back("\n".join(parts))


def editor(app: ChatApp, _: str) -> None:
    """Write the prompt in $VISUAL or $EDITOR."""
    program = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="pkvchat-") as folder:
        path = Path(folder) / "prompt.md"
        path.write_text(app.composer.full_text, encoding="utf-8")
        try:
            with app.suspend():
                subprocess.run([*shlex.split(program), str(path)], check=True)
            text = path.read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise CommandError(f"the editor {program!r} failed: {error}") from error
    app.composer.take(text.rstrip("\n"))


COMMANDS = (
    Command("stop", "stop the answer", stop, "escape"),
    Command("retry", "answer again; restart a dead engine", retry, "ctrl+r", "regen"),
    Command("browse", "move among the messages", browse, "shift+tab,ctrl+up"),
    Command("previous_answer", "previous answer", partial(show_version, -1), "alt+left"),
    Command("next_answer", "next answer", partial(show_version, 1), "alt+right"),
    Command("edit", "change a prompt and ask again, in a fork", edit, "alt+e", "edit"),
    Command("copy_message", "copy the message", copy_message, "alt+c", "copy"),
    Command("copy_code", "copy its last code block", copy_code, "alt+b", "code"),
    Command("copy_chat", "copy the whole chat", copy_chat, slash="copychat"),
    Command("editor", "write the prompt in $EDITOR", editor, "ctrl+g", "editor"),
    Command("read", "put a file into the prompt", read, slash="read", argument="FILE"),
    Command("glob", "put files into the prompt", glob, slash="glob", argument="PATTERN"),
    Command("system", "see or set the system prompt", system, slash="system", argument="TEXT"),
    Command("drop", "let the model forget the oldest turns", drop, slash="drop", argument="COUNT"),
    Command("raw", "exact text or drawn Markdown", raw, "f6", "raw"),
    Command("thoughts", "show or fold reasoning", fold, "f7", "thoughts"),
)
