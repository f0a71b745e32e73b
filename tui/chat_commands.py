"""Commands on chats and their tabs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pkvchat.commands.command import Command, CommandError
from pkvchat.open_chat import OpenChat

if TYPE_CHECKING:
    from .app import ChatApp


def new_chat(app: ChatApp, _: str) -> None:
    app.open_tab(app.fresh_tab())


def close_chat(app: ChatApp, _: str) -> None:
    """The last tab leaves a fresh one behind; a chat with messages stays among the saved ones."""
    tab = app.tab
    tab.chat.draft, place = app.composer.full_text, app.active
    app.remove_tab(tab)
    if tab.chat.messages or tab.edit_of:
        app.closed.append((tab.chat, place))
        app.notify(f"Closed. {app.keymap.shown('reopen_chat')} opens it again.", timeout=3)


def reopen_chat(app: ChatApp, _: str) -> None:
    if not app.closed:
        key = app.keymap.shown("find_chat")
        raise CommandError(f"no chat was closed since the start; {key} finds earlier ones")
    chat, place = app.closed.pop()
    app.open_tab(OpenChat(chat), min(place, len(app.tabs)))


def step_chat(step: int, app: ChatApp, _: str) -> None:
    app.go_to((app.active + step) % len(app.tabs))


def go_to(index: int, app: ChatApp, _: str) -> None:
    app.go_to(index)


def move_chat(step: int, app: ChatApp, _: str) -> None:
    """Swap the tab with its neighbour."""
    at, to = app.active, app.active + step
    if 0 <= to < len(app.tabs):
        app.tabs[at], app.tabs[to] = app.tabs[to], app.tabs[at]
        app.active = to
        app.saver.soon(*app.tabs)
        app.draw_around()


COMMANDS: tuple[Command[ChatApp], ...] = (
    Command("new_chat", "new chat", new_chat, "ctrl+t", "new"),
    Command("close_chat", "close this chat", close_chat, "ctrl+w", "close"),
    Command("reopen_chat", "open the chat closed last", reopen_chat, "alt+t", "reopen"),
    Command("previous_chat", "previous chat", partial(step_chat, -1), "ctrl+pageup"),
    Command("next_chat", "next chat", partial(step_chat, 1), "ctrl+pagedown"),
    *(
        Command(f"chat_{n}", "chats 1 to 9" if n == 1 else "", partial(go_to, n - 1), f"alt+{n}")
        for n in range(1, 10)
    ),
    Command("move_left", "move this tab left", partial(move_chat, -1), "alt+pageup"),
    Command("move_right", "move this tab right", partial(move_chat, 1), "alt+pagedown"),
)
