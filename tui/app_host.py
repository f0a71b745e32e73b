"""The app as the shared commands see it: its active chat."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from textual.command import CommandPalette
from textual.widgets import Input

from pkvchat import clipboard
from pkvchat.chats import Chat, Message, given_title
from pkvchat.commands.command import CommandError
from pkvchat.line_input import is_yes
from pkvchat.messages import Ready, Request
from pkvchat.meter import Meter
from pkvchat.open_chat import OpenChat
from pkvchat.sampling import SamplingParams

from .dialogs import AskLine
from .help import HelpScreen
from .providers import ChatProvider

if TYPE_CHECKING:
    from .app import ChatApp


class AppHost:
    """Implements Host."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app

    @property
    def params(self) -> SamplingParams:
        return self._app.session.params

    @params.setter
    def params(self, params: SamplingParams) -> None:
        self._app.session.params = params

    @property
    def current(self) -> OpenChat:
        return self._app.tab

    @property
    def ready(self) -> Ready | None:
        return self._app.session.state.ready

    @property
    def policy(self) -> str:
        return self._app.session.state.policy

    @property
    def meter(self) -> Meter:
        return self._app.session.meter

    @property
    def answered(self) -> OpenChat | None:
        return next((tab for tab in self._app.tabs_from_active() if tab.busy), None)

    def say(self, text: str) -> None:
        self._app.tab.say(text)
        self._app.changed(self._app.tab)

    def send(self, request: Request) -> None:
        self._app.session.client.send(request)

    def submit(self) -> None:
        self._app.session.submit(self._app.tab)
        self._app.transcript.action_scroll_end()

    def restart(self, **changes: object) -> None:
        if self.answered:
            raise CommandError("an answer runs; stop it before the engine restarts")
        self._app.session.restart(**changes)

    def revive(self) -> bool:
        if not self._app.session.state.dead:
            return False
        self._app.session.restart()
        return True

    def changed(self) -> None:
        self._app.changed(self._app.tab)

    def open(self, chat: Chat) -> None:
        self._app.open_tab(OpenChat(chat))

    def clear(self) -> None:
        """What was said stays among the saved chats."""
        index, alone = self._app.active, len(self._app.tabs) == 1
        self._app.command("close_chat")
        if not alone:  # else there is a fresh one already
            self._app.open_tab(self._app.fresh_tab(), index)

    def save(self) -> str:
        self._app.saver.now()
        if self._app.saver.store is None:
            raise CommandError("chats are not being saved; /export FILE writes this one")
        if self._app.saver.problem:
            raise CommandError(self._app.saver.problem)
        return f"{self._app.saver.store.path}, as always"

    def rename(self, title: str) -> None:
        self._set_title(self._app.tab, title)

    def ask_title(self) -> bool:
        tab = self._app.tab
        question = AskLine("Title", tab.chat.title)
        self._app.push_screen(question, partial(self._set_title, tab))
        return True

    def _set_title(self, tab: OpenChat, title: str | None) -> None:
        """None, or nothing in it: a person thought better of it."""
        tab.chat.title = given_title(title or "") or tab.chat.title
        self._app.saver.soon(tab)
        self._app.draw_around()

    def find(self, words: str) -> None:
        if self._app.saver.store is None:
            raise CommandError("chats are not being saved, so there are none to find")
        search = CommandPalette([ChatProvider], placeholder="Search all chats")
        self._app.push_screen(search)
        if words:
            search.call_after_refresh(lambda: setattr(search.query_one(Input), "value", words))

    def delete(self) -> None:
        """After a yes: no chat that was deleted comes back."""
        tab = self._app.tab
        if self._app.saver.is_shown_elsewhere(tab.chat):
            raise CommandError(f"another pkvchat shows {tab.chat.name}: delete it there")
        question = AskLine(f"Delete {tab.chat.name} for good? Type yes", "")
        self._app.push_screen(question, partial(self._delete, tab))

    def _delete(self, tab: OpenChat, answer: str | None) -> None:
        if not is_yes(answer or ""):
            return
        self._app.remove_tab(tab)
        self._app.saver.delete(tab.chat)
        self._app.notify(f"Deleted {tab.chat.name}.", markup=False, timeout=3)

    def put_in_prompt(self, text: str) -> None:
        self._app.composer.put_back(text)

    def chosen(self) -> Message:
        """The message under the transcript's cursor, else the last answer."""
        chat, cursor = self._app.tab.chat, self._app.transcript.cursor
        if cursor is not None and cursor < len(chat.messages):
            return chat.messages[cursor]
        if answer := chat.last("assistant"):
            return answer
        raise CommandError("there is no answer yet")

    def place(self) -> int:
        cursor = self._app.transcript.cursor
        return len(self._app.tab.chat.messages) if cursor is None else cursor + 1

    def copy(self, text: str, what: str) -> None:
        """To the terminal's clipboard (OSC 52) and the desktop's, where a program reaches it."""
        self._app.copy_to_clipboard(text)
        self._app.run_worker(partial(clipboard.copy, text), thread=True, group="clipboard")
        self._app.notify(f"Copied the {what}, {len(text):,} characters.", timeout=2)

    def help(self) -> None:
        browse = self._app.keymap.shown("browse")
        self._app.push_screen(HelpScreen(self._app.keymap.rows(), browse))

    def leave(self) -> None:
        self._app.exit(0)
