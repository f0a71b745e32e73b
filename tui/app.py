"""The app: tabs of chats, one composer, one engine."""

from __future__ import annotations

import time
from typing import ClassVar

from textual import events, on
from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.theme import BUILTIN_THEMES

from pkvchat.client import EngineClient
from pkvchat.errors import UsageError
from pkvchat.messages import (
    Close,
    Died,
    Event,
    Failed,
    Loading,
    PolicyChanged,
    Ready,
    Steps,
    Stop,
    Submit,
)
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams
from pkvchat.settings import Settings

from . import keymap
from .clean import one_line
from .composer import Composer
from .link import EngineEvents, EngineReader
from .meter import Meter
from .palette import CALM_DARK, CALM_LIGHT, THEME_NAMES, Palette
from .panel import EngineState, Panel
from .status import StatusLine, describe
from .tab import Phase, Tab
from .tabstrip import TabStrip
from .transcript import Transcript

_FRAME_S = 1 / 15  # text is drawn this often at most
_PULSE_S = 1 / 5  # spinners, figures and progress
_QUIT_S = 2.0  # two Ctrl+C within it quit
_WIDE = 100  # columns from which the panel stands beside the text
_TALL = 20
_LOW = 14  # rows below which there is no panel and no frame around the composer


class ChatApp(App[int]):
    """One window over one engine process, reached only through ``client``, which is started."""

    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = keymap.bindings()

    def __init__(self, client: EngineClient, params: SamplingParams, settings: Settings) -> None:
        super().__init__()
        for theme in (CALM_DARK, CALM_LIGHT):
            self.register_theme(theme)
        self.theme = THEME_NAMES.get(settings.theme or "dark", settings.theme)
        self.set_keymap(keymap.checked(settings.keys))
        self.client = client
        self.params = params
        self.settings = settings
        self.engine = EngineState(policy=client.options.policy)
        self.meter = Meter()
        self.tabs = [self._fresh_tab()]
        self.active = 0
        palette = Palette.of(self.current_theme)
        self.strip = TabStrip(palette)
        self.transcript = Transcript(self.tab.chat, palette)
        self.panel = Panel(self.meter, self.engine, palette)
        self.composer = Composer()
        self.status = StatusLine(palette)
        self._reader = EngineReader(client, self)
        self._panel_wanted = True
        self._frame_due = False
        self._quit_until = 0.0

    def _fresh_tab(self) -> Tab:
        tab = Tab()
        tab.chat.system = self.settings.system_prompt
        return tab

    @property
    def tab(self) -> Tab:
        return self.tabs[self.active]

    def compose(self) -> ComposeResult:
        yield self.strip
        with Vertical(id="body"):
            yield self.transcript
            yield self.panel
        yield self.composer
        yield self.status

    def on_mount(self) -> None:
        self._pulse = self.set_interval(_PULSE_S, self._draw_around)
        self.theme_changed_signal.subscribe(self, lambda _: self._recolour())
        self.composer.focus()
        self._lay_out()
        self._reader.start()
        self._show_tab()

    def on_unmount(self) -> None:
        self._reader.stop()
        self.client.close()

    def _recolour(self) -> None:
        palette = Palette.of(self.current_theme)
        for widget in (self.strip, self.panel, self.status):
            widget.palette = palette
            widget.refresh()
        self.transcript.recolour(palette)
        self.panel.update()

    def on_resize(self, event: events.Resize) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        """The panel beside the text, in one line, or away, as the window allows."""
        width, height = self.size
        self.screen.set_class(height < _LOW, "-low")
        self.panel.set_class(width < _WIDE or height < _TALL, "-line")
        self.panel.set_class(height < _LOW or not self._panel_wanted, "-hidden")
        self.call_after_refresh(self.panel.update)

    # --- drawing ------------------------------------------------------------------------------

    def _show_tab(self) -> None:
        """Bring the active chat and its draft to the screen."""
        self.tab.unread = False
        self.transcript.show(self.tab.chat)
        self.composer.take(self.tab.chat.draft)
        self.composer.focus()
        self._draw_around()

    def _draw_soon(self) -> None:
        """Draw the active chat within a frame, however many events come until then."""
        if not self._frame_due:
            self._frame_due = True
            self.set_timer(_FRAME_S, self._draw)

    def _draw(self) -> None:
        self._frame_due = False
        self.transcript.update()

    def _draw_around(self) -> None:
        """Draw what is around the text; rests while nothing goes on."""
        state, style = describe(self.tab, self.engine, self.meter, self.status.palette)
        self.status.show(state, style, self._hints())
        self.strip.show(self.tabs, self.active)
        self.panel.update()
        if any(tab.busy for tab in self.tabs):
            self.strip.spin()
        elif self.engine.ready or self.engine.dead:
            self._pulse.pause()

    def _wake(self) -> None:
        self._pulse.resume()
        self._draw_around()

    def _hints(self) -> str:
        if self.engine.dead:
            return "^R restart  ^Q quit"
        return "Esc stop" if self.tab.busy else "^T new  ^W close  ^PgUp/PgDn switch  ^Q quit"

    # --- what the engine says -----------------------------------------------------------------

    @on(EngineEvents)
    def _take_engine_events(self, message: EngineEvents) -> None:
        for event in message.events:
            self._apply(event)
        self._pulse.resume()

    def _apply(self, event: Event) -> None:
        match event:
            case Steps(records):
                self.meter.add(records)
            case Loading():
                self.engine.stage, self.engine.done, self.engine.total = (
                    event.stage,
                    event.done,
                    event.total,
                )
            case Ready():
                self._engine_ready(event)
            case PolicyChanged(name):
                self.engine.policy = name
            case Died(message):
                self._engine_died(message)
            case Failed(None, message, fatal):
                if fatal:
                    self._engine_died(message)
                else:
                    self._note(self.tab, message)
            case _:
                self._apply_to_chat(event)

    def _apply_to_chat(self, event: Event) -> None:
        tab = next((t for t in self.tabs if t.chat.id == getattr(event, "chat_id", None)), None)
        if tab is None:
            return  # of a chat that was closed meanwhile
        put_back = tab.apply(event)
        if put_back:
            self._put_back(tab, put_back)
        if tab is self.tab:
            self._draw_soon()
        else:
            tab.unread = True
        if not tab.busy and tab.ask_next():
            self._submit(tab)

    def _engine_ready(self, ready: Ready) -> None:
        self.engine.ready, self.engine.policy, self.engine.dead = ready, ready.policy, ""
        self.transcript.speaker = one_line(ready.model)
        for note in ready.notes:
            self.notify(one_line(note), markup=False, timeout=8)
        for tab in self.tabs:
            if tab.phase is Phase.WAITING:
                self._submit(tab)

    def _engine_died(self, why: str) -> None:
        """Say so once, keep every word; a fatal failure and the process's end may both come."""
        if self.engine.dead:
            return
        self.engine.ready, self.engine.dead = None, why
        for tab in self.tabs:
            if tab.busy:
                tab.interrupted("died")
                self._note(tab, f"{why}. Nothing is lost; Ctrl+R restarts the engine.")

    def _note(self, tab: Tab, line: str) -> None:
        tab.note(line)
        if tab is self.tab:
            self._draw_soon()
        else:
            tab.unread = True

    def _put_back(self, tab: Tab, text: str) -> None:
        if tab is self.tab:
            self.composer.put_back(text)
        else:
            tab.chat.draft = "\n\n".join(part for part in (text, tab.chat.draft) if part)

    # --- what a person does -------------------------------------------------------------------

    @on(Composer.Sent)
    def _send(self, message: Composer.Sent) -> None:
        self.composer.clear()
        tab = self.tab
        if tab.ask(message.text):
            self._submit(tab)
        self._follow()

    def _submit(self, tab: Tab) -> None:
        """Send the awaited conversation, or leave it waiting for an engine that isn't ready."""
        if self.engine.ready:
            self.client.send(Submit(tab.chat.id, tab.conversation(), self.params))
        self._wake()
        if tab is self.tab:
            self._draw_soon()

    def _follow(self) -> None:
        self.transcript.action_scroll_end()
        self._wake()

    @on(TabStrip.Picked)
    def _pick_tab(self, message: TabStrip.Picked) -> None:
        self.action_go_to(message.index)

    def action_go_to(self, index: int) -> None:
        if index < len(self.tabs) and index != self.active:
            self.tab.chat.draft = self.composer.text
            self.active = index
            self._show_tab()

    def action_next_chat(self) -> None:
        self.action_go_to((self.active + 1) % len(self.tabs))

    def action_previous_chat(self) -> None:
        self.action_go_to((self.active - 1) % len(self.tabs))

    def action_new_chat(self) -> None:
        self.tabs.append(self._fresh_tab())
        self.action_go_to(len(self.tabs) - 1)

    def action_close_chat(self) -> None:
        """Close the active tab; the last one leaves a fresh one behind."""
        tab = self.tabs.pop(self.active)
        self.client.send(Close(tab.chat.id))
        if not self.tabs:
            self.tabs.append(self._fresh_tab())
        self.active = min(self.active, len(self.tabs) - 1)
        self._show_tab()

    def action_stop(self) -> None:
        """End the active chat's answer; prompts that waited behind it return to the composer."""
        tab = self.tab
        if not tab.busy:
            return
        self._put_back(tab, tab.take_back_queue())
        if tab.phase is Phase.WAITING and not self.engine.ready:
            self._put_back(tab, tab.withdraw())
        else:
            self.client.send(Stop(tab.chat.id))
        self._draw_soon()
        self._wake()

    def action_retry(self) -> None:
        """Answer the last prompt again, or bring a dead engine back."""
        if self.engine.dead:
            self._restart_engine()
        elif self.tab.regenerate():
            self._submit(self.tab)
            self._follow()

    def _restart_engine(self) -> None:
        self._reader.stop()
        self.engine.dead, self.engine.stage, self.engine.total = "", "restarting the engine", 0
        self.client.restart()
        self._reader = EngineReader(self.client, self)
        self._reader.start()
        self._wake()

    def action_toggle_panel(self) -> None:
        self._panel_wanted = not self._panel_wanted
        self._lay_out()

    def action_interrupt(self) -> None:
        """Ctrl+C: copy what is selected, else stop the answer, else clear the composer (Ctrl+Z
        brings it back), else quit when pressed twice."""
        selected = self.screen.get_selected_text() or self.composer.selected_text
        if selected:
            self.copy_to_clipboard(selected)
            self.notify("Copied.", timeout=2)
        elif self.tab.busy:
            self.action_stop()
        elif self.composer.text:
            self.composer.clear()
        elif time.monotonic() < self._quit_until:
            self.exit(0)
        else:
            self._quit_until = time.monotonic() + _QUIT_S
            self.notify("Press Ctrl+C again to quit.", timeout=_QUIT_S)

    async def action_quit(self) -> None:
        self.exit(0)


def run(options: EngineOptions, params: SamplingParams, settings: Settings) -> int:
    """Open the app and return its exit code.

    Raises UsageError for a theme or a key's action that does not exist.
    """
    themes = [*THEME_NAMES, CALM_DARK.name, CALM_LIGHT.name, *sorted(BUILTIN_THEMES)]
    if settings.theme and settings.theme not in themes:
        raise UsageError(f"theme {settings.theme!r} does not exist; one of {', '.join(themes)}")
    client = EngineClient(options)
    app = ChatApp(client, params, settings)
    client.start()  # before Textual takes standard error, which multiprocessing passes on
    return app.run() or 0
