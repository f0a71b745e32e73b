"""The engine's own process: requests come in over a pipe, events go out in batches."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from .messages import (
    CountTokens,
    Delta,
    Event,
    Failed,
    Loading,
    Pages,
    Prefilled,
    Request,
    Shutdown,
    Steps,
)
from .options import EngineOptions

if TYPE_CHECKING:
    from .service import ChatService

FLUSH_S = 1 / 10  # a frame: what comes faster goes out together


class Outbox:
    """Collects events and sends them once a frame from a thread of its own, so that a slow
    reader never holds up a decode step."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._events: list[Event] = []
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def put(self, events: Iterable[Event]) -> None:
        with self._wake:
            self._events += events
            if self._events:
                self._wake.notify()

    def close(self) -> None:
        """Send what is left and end."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._events and not self._closed:
                    self._wake.wait()
                batch, self._events = self._events, []
                closed = self._closed
            try:
                if batch:
                    self._connection.send(coalesce(batch))
            except OSError:
                return  # nobody reads any more; the main loop sees the same and ends
            if closed:
                return
            time.sleep(FLUSH_S)


class TokenCounter:
    """Counts in a thread of its own, so that no decode step waits for it; the newest request is
    answered, those before it that still wait are not."""

    def __init__(self, service: ChatService, outbox: Outbox) -> None:
        self._service = service
        self._outbox = outbox
        self._request: CountTokens | None = None
        self._wake = threading.Condition()
        threading.Thread(target=self._run, name="token counter", daemon=True).start()

    def put(self, request: CountTokens) -> None:
        with self._wake:
            self._request = request
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._request is not None)
                request, self._request = self._request, None
            if request is not None:
                self._outbox.put(self._service.handle(request))


def coalesce(events: list[Event]) -> list[Event]:
    """The same story in fewer events: neighbouring text of a chat, prefill progress and step
    records are joined, and of the pages the newest are told. Each chat's own order is kept."""
    out: list[Event] = []
    deltas: dict[str, int] = {}  # chat -> index in out of a Delta that may still grow
    steps: list[Steps] = []
    pages: Pages | None = None
    for event in events:
        match event:
            case Delta(chat_id, text, count) if chat_id in deltas:
                at = deltas[chat_id]
                former = out[at]
                assert isinstance(former, Delta)
                out[at] = Delta(chat_id, former.text + text, former.num_tokens + count)
            case Delta(chat_id):
                deltas[chat_id] = len(out)
                out.append(event)
            case Steps():
                steps.append(event)
            case Pages():
                pages = event
            case Loading() | Prefilled() if (
                out and type(out[-1]) is type(event) and (_subject(out[-1]) == _subject(event))
            ):
                out[-1] = event
            case _:
                deltas.pop(getattr(event, "chat_id", None) or "", None)
                out.append(event)
    if steps:
        out.append(Steps(tuple(record for event in steps for record in event.records)))
    return [*out, pages] if pages else out


def _subject(event: Event) -> str | None:
    return event.stage if isinstance(event, Loading) else getattr(event, "chat_id", None)


def main(options: EngineOptions, connection: Connection, log_path: str) -> None:
    """The process's body: load, then serve until Shutdown or until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is the interface's to interpret
    _redirect_output(log_path)
    outbox = Outbox(connection)
    try:
        _serve(options, connection, outbox)
    except EOFError:
        pass  # the interface is gone
    except Exception as error:
        traceback.print_exc()
        outbox.put([Failed(None, str(error) or type(error).__name__, fatal=True)])
        outbox.close()
        sys.exit(1)
    outbox.close()


def _serve(options: EngineOptions, connection: Connection, outbox: Outbox) -> None:
    from .service import ChatService  # imports torch; the process answers before that is done

    service = ChatService(
        options, lambda stage, done, total: outbox.put([Loading(stage, done, total)])
    )
    outbox.put([service.ready])
    counter = TokenCounter(service, outbox)
    while True:
        while connection.poll(None if service.idle else 0):
            request: Request = connection.recv()
            if isinstance(request, CountTokens):
                counter.put(request)
                continue
            outbox.put(service.handle(request))
            if isinstance(request, Shutdown):
                return
        outbox.put(service.poll())


def _redirect_output(log_path: str) -> None:
    """Libraries print to the terminal, which belongs to the interface: send that to a log."""
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
