"""The app's dealings with the engine: what it said last, and what its events do to the chats."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pkvchat.clean import one_line
from pkvchat.client import EngineClient
from pkvchat.messages import (
    Benched,
    Counted,
    Died,
    Event,
    Failed,
    Finished,
    Loading,
    Notice,
    Pages,
    PolicyChanged,
    Ready,
    Started,
    Steps,
)
from pkvchat.meter import Meter
from pkvchat.open_chat import OpenChat, Phase
from pkvchat.sampling import SamplingParams

from .context_full import offer_choices
from .link import EngineReader

if TYPE_CHECKING:
    from .app import ChatApp


@dataclass
class EngineState:
    """ready: None while it loads or is dead. dead: why it is, "" while it isn't.

    stage, done, total: what is being loaded, as Loading says it.
    """

    ready: Ready | None = None
    policy: str = ""
    stage: str = "starting the engine"
    done: int = 0
    total: int = 0
    dead: str = ""


class Session:
    """One engine process after another, behind one client."""

    def __init__(self, app: ChatApp, client: EngineClient, params: SamplingParams) -> None:
        self.client = client
        self.params = params
        self.state = EngineState(policy=client.options.policy)
        self.meter = Meter()
        self._worked: Ready | None = None  # what the engine was when it last was ready,
        self._options = client.options  # and the options it had
        self._app = app
        self._reader = EngineReader(client, app)
        self._replacing = asyncio.Lock()

    def start(self) -> None:
        """Listen to the client, whose process was started before the app."""
        self._reader.start()

    def close(self) -> None:
        self._reader.stop()
        self.client.close()

    def restart(self, **changes: object) -> None:
        """A new process, with ``changes`` to the options, once the old one ended."""
        self.client.options = replace(self.client.options, **changes)  # type: ignore[arg-type]
        self.state.ready, self.state.dead = None, ""
        self.state.stage, self.state.total = "restarting the engine", 0
        self._app.run_worker(self._replace_process())
        self._app.draw_around()

    async def _replace_process(self) -> None:
        async with self._replacing:
            await asyncio.to_thread(self.close)  # which waits for a step to end
            self.client.start()
            self._reader = EngineReader(self.client, self._app)
            self._reader.start()

    def submit(self, tab: OpenChat) -> None:
        """Send the awaited conversation, or leave it waiting for an engine that isn't ready."""
        tab.edit_of = None
        if self.state.ready:
            self.client.send(tab.submission(self.params, self.state.ready))
        self._app.changed(tab)

    # --- events -------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        state = self.state
        if isinstance(event, Failed | Notice):
            event = replace(event, message=self._with_titles(event.message))
        match event:
            case Steps(records):
                self.meter.add(records)
            case Pages():
                self.meter.pages = event
                self._app.draw_around()
            case Loading(stage, done, total):
                state.stage, state.done, state.total = stage, done, total
            case Ready():
                self._became_ready(event)
            case PolicyChanged(name):
                state.policy = name  # of the next engine, too
                self._options = self.client.options = replace(self.client.options, policy=name)
            case Benched(table):
                self._app.host.say(table)
            case Counted():
                self._app.token_count.take(event)
                self._app.draw_around()
            case Died(message) | Failed(None, message, True):
                self._died(message)
            case Failed(None, message) | Notice(None, message):
                self._app.note(self._app.tab, message)
            case _:
                self._apply_to_chat(event)

    def _apply_to_chat(self, event: Event) -> None:
        chat_id = getattr(event, "chat_id", None)
        tab = next((tab for tab in self._app.tabs if tab.chat.id == chat_id), None)
        if tab is None:
            return  # of a chat that was closed meanwhile
        put_back = tab.apply(event)
        if put_back:
            self._app.put_back(tab, put_back)
        if isinstance(event, Finished) and event.new_tokens:
            self.meter.ttfts.append(event.ttft_s)
        if self.state.ready and isinstance(event, Started | Finished):
            tab.warn_of_context(self.state.ready.context)
        if not tab.busy and tab.ask_next():
            self.submit(tab)
        if tab.full and isinstance(event, Finished | Failed):
            offer_choices(self._app, tab, refused=isinstance(event, Failed))
        if tab is self._app.tab and isinstance(event, Finished):
            self._app.token_count.typed()  # the chat is longer now
        self._app.changed(tab)

    def _became_ready(self, ready: Ready) -> None:
        self.state.ready, self.state.policy, self.state.dead = ready, ready.policy, ""
        self._worked, self._options = ready, self.client.options
        self.meter.pages = Pages(0, 0, ready.pages_total)
        self._app.transcript.name_speaker(one_line(ready.model))
        for note in ready.notes:
            self._app.notify(one_line(note), markup=False, timeout=8)
        self._app.token_count.typed()
        for tab in self._app.tabs:
            if tab.phase is Phase.WAITING:
                self.submit(tab)

    def _died(self, why: str) -> None:
        """Say so once, keep every word; a fatal failure and the process's end may both come."""
        if self.state.dead:
            return
        self.state.ready, self.state.dead = None, why
        then = "restarts the engine"
        if self._worked and self.client.options != self._options:  # the change was for the worse
            self.client.options = self._options
            then = f"goes back to {one_line(self._worked.model)}"
        line = f"{why}. Nothing is lost; {self._app.keymap.shown('retry')} {then}."
        for tab in self._app.tabs:
            if tab.busy or tab is self._app.tab:
                tab.interrupted("died")
                self._app.note(tab, line)
                tab.ask_next()  # so that it goes out after the restart

    def _with_titles(self, line: str) -> str:
        """The engine knows chats by their ids, a person by their titles."""
        for tab in self._app.tabs:
            line = line.replace(tab.chat.id, f"“{one_line(tab.chat.name)}”")
        return line
