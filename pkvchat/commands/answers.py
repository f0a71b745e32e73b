"""Commands on prompts and answers that need no screen, for plain mode and the app."""

from __future__ import annotations

import re

from pkvchat.chats import OWN_LINES

from .command import Command, CommandError, whole
from .host import Host

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def regenerate(host: Host, _: str) -> None:
    """Answer the last prompt again, the answers so far kept; or bring a dead engine back."""
    if host.revive():
        return
    if not host.current.regenerate():
        raise CommandError("there is no prompt to answer again, or its answer still runs")
    host.submit()


def carry_on(host: Host, _: str) -> None:
    if not host.current.carry_on():
        raise CommandError("no answer was cut short here, or one still runs")
    host.submit()


def system(host: Host, text: str) -> None:
    chat = host.current.chat
    if text:
        chat.system = text
        host.changed()
    host.say(f"system prompt: {chat.system or 'none'}")


def copy_message(host: Host, _: str) -> None:
    host.copy(host.chosen().text, "message")


def copy_code(host: Host, number: str) -> None:
    """The message's code block of that number, counted from 1; the last without one."""
    blocks = code_blocks(host.chosen().text)
    if not blocks:
        raise CommandError("that message has no code block")
    if number and not 0 < whole(number) <= len(blocks):
        raise CommandError(f"/code {number[:20]}: that message has code blocks 1 to {len(blocks)}")
    host.copy(blocks[int(number or 0) - 1], "code block")


def copy_chat(host: Host, _: str) -> None:
    turns = [f"{m.role}: {m.text}" for m in host.current.chat.messages if m.role not in OWN_LINES]
    host.copy("\n\n".join(turns), "chat")


def code_blocks(text: str) -> list[str]:
    """The text inside each fenced block; one that is still open ends with the text."""
    blocks: list[str] = []
    fence = ""
    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if fence and mark and mark[1].startswith(fence) and line.strip() == mark[1]:
            fence = ""
        elif fence:
            blocks[-1] += line
        elif mark:
            fence = mark[1]
            blocks.append("")
    return blocks


COMMANDS: tuple[Command[Host], ...] = (
    Command("retry", "answer again; restart a dead engine", regenerate, "ctrl+r", "regen"),
    Command("continue", "go on with an answer that was cut short", carry_on, "f9", "continue"),
    Command("copy_message", "copy the message", copy_message, "alt+c", "copy"),
    Command("copy_code", "copy a code block, the last one", copy_code, "alt+x", "code", "[NUMBER]"),
    Command("copy_chat", "copy the whole chat", copy_chat, slash="copychat"),
    Command("system", "see or set the system prompt", system, slash="system", argument="[TEXT]"),
)
