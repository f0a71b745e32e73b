"""The app: tabs of chats, one composer, one engine."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import ClassVar

from textual import events, on
from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.geometry import Size

from pkvchat.chats import Chat
from pkvchat.clean import one_line
from pkvchat.client import EngineClient
from pkvchat.commands.command import CommandError
from pkvchat.commands.slash import is_command, to_line, to_prompt
from pkvchat.errors import ChatError, UsageError
from pkvchat.messages import Close
from pkvchat.open_chat import OpenChat
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams
from pkvchat.settings import Settings
from pkvchat.store import ChatStore, store_path

from . import view_commands
from .all_commands import COMMANDS
from .app_host import AppHost
from .composer import Composer
from .driver import Utf8Driver, trust_terminal_size
from .frame_pace import FramePace
from .keymap import Keymap, bindings
from .link import EngineEvents
from .palette import CALM_DARK, CALM_LIGHT, THEME_NAMES, Palette
from .panel import Panel
from .saver import Saver, open_store
from .session import Session
from .sidebar import Sidebar
from .slash_list import SlashList
from .status import StatusLine, describe, hints
from .tabstrip import TabStrip
from .token_count import TokenCount
from .transcript import Transcript
from .welcome import welcome

_PULSE_S = 1 / 5  # spinners, figures and progress
_ONLY_LEAVE = ("stop", "help", "palette", "inspect", "find_chat")  # with a screen over the chat
_WIDE = 100  # columns from which the panel stands beside the text
_TALL = 20
_LOW = 14  # rows below which there is no panel and no frame around the composer


class ChatApp(App[int]):
    """One window over one engine process, reached only through ``client``, which is started."""

    TITLE = "pkvchat"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = bindings()

    def __init__(
        self,
        client: EngineClient,
        params: SamplingParams,
        settings: Settings,
        store: ChatStore | None = None,
        path: Path | None = None,
    ) -> None:
        """store, path: see Saver."""
        # Without colours Textual draws in greys, unless the terminal's own are asked for here.
        ansi_color = True if "NO_COLOR" in os.environ else None
        super().__init__(driver_class=Utf8Driver, ansi_color=ansi_color)
        for theme in (CALM_DARK, CALM_LIGHT):
            self.register_theme(theme)
        name = settings.theme or ("terminal" if self.no_color else "dark")
        self.theme = THEME_NAMES.get(name, name)
        self.keymap = Keymap(settings.keys)
        self.set_keymap(self.keymap.mine)
        self.settings = settings
        self.host = AppHost(self)
        self.saver = Saver(self, store, path)
        self.session = Session(self, client, params)
        self.closed: list[tuple[Chat, int]] = []  # with the places that their tabs had
        self.tabs = self.saver.saved_tabs() or [self.fresh_tab()]
        self.active = self.saver.place_in_view(self.tabs)
        self.panel_wanted = settings.panel
        self.mouse = settings.mouse
        self.quit_until = 0.0
        palette = Palette.of(self.current_theme)
        self.strip = TabStrip(palette)
        self.sidebar = Sidebar(self)
        self.transcript = Transcript(
            self.tab.chat,
            palette,
            welcome(self.keymap, first=self.saver.first_start),
            self.keymap.shown("thoughts"),
        )
        self.panel = Panel(self.session, palette, self.keymap, self.tabs_from_active)
        self.history = [m.text for tab in self.tabs for m in tab.chat.messages if m.role == "user"]
        self.slash_list = SlashList()
        self.composer = Composer(self.history, self._completions, self.slash_list)
        self.token_count = TokenCount(self)
        self.status = StatusLine(palette)
        self._frame_due = False
        self._pace = FramePace()
        self._around_drawn = 0.0

    def fresh_tab(self) -> OpenChat:
        return OpenChat(Chat(system=self.settings.system_prompt))

    @property
    def tab(self) -> OpenChat:
        return self.tabs[self.active]

    def tabs_from_active(self) -> list[OpenChat]:
        return [self.tab, *(tab for tab in self.tabs if tab is not self.tab)]

    def compose(self) -> ComposeResult:
        yield self.strip
        with Vertical(id="body"):
            yield self.sidebar
            yield self.transcript
            yield self.panel
            yield self.slash_list
        yield self.composer
        yield self.status

    def on_mount(self) -> None:
        self._pulse = self.set_interval(_PULSE_S, self._on_pulse)
        self.theme_changed_signal.subscribe(self, lambda _: self._recolour())
        for stop in (signal.SIGTERM, signal.SIGHUP):  # leave in order: chats saved, terminal reset
            asyncio.get_running_loop().add_signal_handler(stop, self.exit, None, 128 + stop)
        self.composer.focus()
        self.lay_out()
        self.session.start()
        self._show_tab()

    def on_unmount(self) -> None:
        self.session.close()
        self.saver.close()

    def _recolour(self) -> None:
        palette = Palette.of(self.current_theme)
        for widget in (self.strip, self.panel, self.status):
            widget.palette = palette
            widget.refresh()
        self.transcript.recolour(palette)
        self.panel.update()

    def on_resize(self, event: events.Resize) -> None:
        self.lay_out(event.size)

    def lay_out(self, window: Size | None = None) -> None:
        """The panel beside the text, in a few lines, in one, or away, as the window allows.

        window: its size, where that is newer than what Textual knows.
        """
        width, height = window or self.size
        if self.sidebar.display:
            width -= self.sidebar.WIDTH
        self.screen_stack[0].set_class(height < _LOW, "-low")
        beside = width >= _WIDE and height >= _TALL
        self.panel.set_class(not beside, "-line")
        self.slash_list.set_class(not beside, "-wide")
        self.panel.set_class(height >= _TALL, "-few")
        self.panel.set_class(height < _LOW or not self.panel_wanted, "-hidden")
        self.call_after_refresh(self.panel.update)

    # --- drawing ------------------------------------------------------------------------------

    def _show_tab(self) -> None:
        """Bring the active chat and its draft to the screen."""
        self.tab.unread = False
        self.transcript.show(self.tab.chat)
        self.composer.take(self.tab.chat.draft)
        self.composer.focus()
        self.draw_around()

    def _draw_soon(self) -> None:
        """Draw the active chat with the next frame, however many events come until then."""
        if not self._frame_due:
            self._frame_due = True
            self.set_timer(self._pace.delay(), self.draw)

    def draw(self) -> None:
        """Draw what has changed, at once."""
        self._frame_due = False
        self.transcript.update()
        if time.monotonic() - self._around_drawn > _PULSE_S:
            self.draw_around()  # one repaint for both

    def _on_pulse(self) -> None:
        if not self._frame_due and time.monotonic() - self._around_drawn > _PULSE_S:
            self.draw_around()

    def draw_around(self) -> None:
        """Draw what is around the text, and again with each pulse while something goes on."""
        self._around_drawn = time.monotonic()
        self._draw_status()
        self.strip.show(self.tabs, self.active)
        self.sidebar.update(self.tabs, self.tab)
        self.panel.update()
        waits = not (self.session.state.ready or self.session.state.dead)
        if waits or any(tab.busy for tab in self.tabs):
            self._pulse.resume()
        else:
            self._pulse.pause()

    def _draw_status(self) -> None:
        typed = self.token_count.line()
        self.composer.border_subtitle = typed if self.tab.busy else ""
        state, style = describe(self.tab, self.session, typed, self.status.palette)
        browsing = self.transcript.cursor is not None
        self.status.show(
            state, style, hints(self.tab, self.session, self.keymap, browsing=browsing)
        )

    def changed(self, tab: OpenChat) -> None:
        """Draw and save a chat that something happened to."""
        if tab is self.tab:
            self._draw_soon()
        else:
            tab.unread = True
        self.saver.soon(tab)
        self._pulse.resume()

    # --- what the engine says -----------------------------------------------------------------

    @on(EngineEvents)
    def _take_engine_events(self, message: EngineEvents) -> None:
        for event in message.events:
            self.session.apply(event)
        self._pulse.resume()

    def note(self, tab: OpenChat, line: str) -> None:
        """A line of the app's own in a chat."""
        tab.note(line)
        self.changed(tab)

    def put_back(self, tab: OpenChat, prompt: str) -> None:
        """Set ``prompt`` before what is typed in ``tab``, to be sent again."""
        if tab is self.tab:
            self.composer.put_back(to_line(prompt))
        else:
            tab.chat.draft = "\n\n".join(part for part in (to_line(prompt), tab.chat.draft) if part)
            self.saver.soon(tab)

    # --- what a person does -------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Shift+Tab goes back through a form's fields."""
        return not (parameters == ("browse",) and len(self.screen_stack) > 1)

    def action_command(self, name: str) -> None:
        self.command(name)

    def command(self, name: str, argument: str = "") -> None:
        """Run a command; what it cannot do is said in one line."""
        if len(self.screen_stack) > 1 and name not in ("interrupt", "quit"):
            self.pop_screen()
            if name in _ONLY_LEAVE:
                return
        try:
            COMMANDS.by_name[name].run(self, argument)
        except (CommandError, ChatError) as error:
            self.notify(one_line(str(error)), severity="warning", markup=False)

    @on(Composer.Sent)
    def _send(self, message: Composer.Sent) -> None:
        if is_command(message.text):
            self._run_slash(message.text)
            return
        text = to_prompt(message.text)
        self.composer.take("")
        self.history.append(text)
        if self.tab.ask(text):
            self.session.submit(self.tab)
        self.saver.soon(self.tab)
        self.transcript.action_scroll_end()
        self.draw_around()

    def _run_slash(self, text: str) -> None:
        try:
            command, argument = COMMANDS.find(text)
        except CommandError as error:
            self.notify(str(error), severity="warning", markup=False)
        else:
            self.composer.take("")
            self.command(command.name, argument)

    @on(SlashList.OptionSelected, "#commands")
    def _take_command(self) -> None:
        self.composer.take(self.slash_list.line())

    def _completions(self, text: str) -> list[str]:
        return COMMANDS.completions(self, text)

    # --- tabs ---------------------------------------------------------------------------------

    def open_tab(self, tab: OpenChat, index: int | None = None) -> None:
        """Show a new tab, at the end or at ``index``."""
        index = len(self.tabs) if index is None else index
        self.keep_draft()
        self.tabs.insert(index, tab)
        self.active = index
        self._show_tab()
        self.saver.soon(*self.tabs)

    def open_saved(self, chat_id: str) -> None:
        """A saved chat, in its tab if it has one."""
        for index, tab in enumerate(self.tabs):
            if tab.chat.key == chat_id:
                self.go_to(index)
                return
        if self.saver.store is not None:
            try:
                chat = self.saver.store.load(chat_id)
            except ChatError as error:
                self.notify(str(error), severity="error", markup=False, timeout=10)
            else:
                self.open_tab(OpenChat(chat))

    def remove_tab(self, tab: OpenChat) -> None:
        """Take a tab away; the last one leaves a fresh one behind, an edit its source."""
        self.session.client.send(Close(tab.chat.id))
        tab.interrupted("cancelled")
        self.tabs.remove(tab)
        if not self.tabs:
            self.tabs.append(self.fresh_tab())
        self.active = min(self.active, len(self.tabs) - 1)
        if tab.edit_of in self.tabs:
            self.active = self.tabs.index(tab.edit_of)
        self._show_tab()
        if tab.edit_of:
            self.saver.delete(tab.chat)
        else:
            self.saver.closed(tab.chat)
        self.saver.soon(*self.tabs)

    def go_to(self, index: int) -> None:
        if index < len(self.tabs) and index != self.active:
            self.keep_draft()
            self.active = index
            self._show_tab()
            self.saver.soon(self.tab)

    @on(Sidebar.Picked)
    def _pick_chat(self, message: Sidebar.Picked) -> None:
        self.open_saved(message.chat_id)
        self.composer.focus()
        self.sidebar.search()

    @on(TabStrip.Picked)
    def _pick_tab(self, message: TabStrip.Picked) -> None:
        self.go_to(message.index)

    def keep_draft(self) -> None:
        self.tab.chat.draft = self.composer.full_text

    @on(Composer.Changed)
    def _draft_changed(self) -> None:
        self.saver.soon(self.tab)
        self.token_count.typed()
        self._draw_status()

    @on(Transcript.CursorMoved)
    def _cursor_moved(self) -> None:
        self._draw_status()


def run(options: EngineOptions, params: SamplingParams, settings: Settings) -> int:
    """Open the app and return its exit code.

    Raises UsageError for a theme or a key's action that does not exist.
    """
    names = view_commands.theme_names()
    if settings.theme and settings.theme not in names:
        raise UsageError(f"theme {settings.theme!r} does not exist; one of {', '.join(names)}")
    Keymap(settings.keys)
    trust_terminal_size()
    store, note = open_store()
    client = EngineClient(options)
    app = ChatApp(client, params, settings, store, store_path())
    client.start()  # before Textual takes standard error, which multiprocessing passes on
    if store is None:
        app.call_later(app.note, app.tab, note)  # true for a while, so it stays there
    elif note:
        app.call_later(app.notify, note, severity="warning", markup=False, timeout=10)
    app.run(mouse=settings.mouse)
    return app.return_code or 0
