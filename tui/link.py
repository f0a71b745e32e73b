"""The thread that waits for the engine's events, so that the app never does."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from textual.app import App
from textual.message import Message

from pkvchat.client import EngineClient
from pkvchat.messages import Died, Event

_POLL_S = 0.25  # how soon the thread sees that it should end


@dataclass
class EngineEvents(Message):
    """What the engine said since the last one."""

    events: list[Event]


class EngineReader:
    """Reads one life of the engine process, up to Died or ``stop``."""

    def __init__(self, client: EngineClient, app: App[int]) -> None:
        self._client = client
        self._app = app
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while not self._stopped.is_set():
            events = self._client.events(_POLL_S)
            if events and not self._stopped.is_set():
                self._app.post_message(EngineEvents(events))
            if any(isinstance(event, Died) for event in events):
                return
