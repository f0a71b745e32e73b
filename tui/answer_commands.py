"""Commands on prompts and answers that only the app has: those that show or edit in its window."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pkvchat.commands.chat import fork_at
from pkvchat.commands.command import Command, CommandError
from pkvchat.commands.slash import to_line
from pkvchat.messages import Stop
from pkvchat.open_chat import Phase

if TYPE_CHECKING:
    from .app import ChatApp


def stop(app: ChatApp, _: str) -> None:
    """Leave the list of commands, the transcript or the sidebar, else an edit that was not sent,
    else end this chat's answer; prompts that waited behind it return to the composer."""
    if app.slash_list.display:
        app.slash_list.leave(app.composer.text)
        return
    if app.transcript.cursor is not None or app.sidebar.has_focus_within:
        app.composer.focus()
        return
    tab = app.tab
    if tab.edit_of:
        app.command("close_chat")
    if not tab.busy:
        return
    app.put_back(tab, tab.take_back_queue())
    if tab.phase is Phase.WAITING and not app.session.state.ready:
        app.put_back(tab, tab.withdraw())
    else:
        app.session.client.send(Stop(tab.chat.id))
    app.changed(tab)


def browse(app: ChatApp, _: str) -> None:
    app.transcript.focus()


def show_version(step: int, app: ChatApp, _: str) -> None:
    """Another of the answers to one prompt; it is the one the model reads from then on."""
    message = app.host.chosen()
    if app.tab.busy:
        raise CommandError(f"an answer runs; {app.keymap.shown('stop')} stops it")
    message.chosen = (message.chosen + step) % len(message.versions)
    app.changed(app.tab)


def edit(app: ChatApp, _: str) -> None:
    """Change a prompt: a fork that ends before it, its text in the composer."""
    source = app.tab
    messages = source.chat.messages
    cursor = app.transcript.cursor
    at = len(messages) - 1 if cursor is None else cursor
    while at >= 0 and messages[at].role != "user":
        at -= 1
    if at < 0:
        raise CommandError("there is no prompt to change yet")
    text = messages[at].text
    fork_at(app.host, at, "edit")
    app.tab.edit_of = source
    app.composer.take(to_line(text))


def raw(app: ChatApp, _: str) -> None:
    app.transcript.show_raw(not app.transcript.raw)


def fold(app: ChatApp, _: str) -> None:
    app.transcript.show_thoughts(not app.transcript.thoughts)


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


COMMANDS: tuple[Command[ChatApp], ...] = (
    Command("stop", "stop the answer", stop, "escape"),
    Command("browse", "move among the messages", browse, "shift+tab,ctrl+up"),
    Command("previous_answer", "previous answer", partial(show_version, -1), "alt+left"),
    Command("next_answer", "next answer", partial(show_version, 1), "alt+right"),
    Command("edit", "change a prompt and ask again, in a fork", edit, "alt+e", "edit"),
    Command("editor", "write the prompt in $EDITOR", editor, "ctrl+g", "editor"),
    Command("raw", "exact text or drawn Markdown", raw, "f6", "raw"),
    Command("thoughts", "show or fold reasoning", fold, "f7", "thoughts"),
)
