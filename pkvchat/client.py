"""The interface's end of the engine process. Imports nothing heavy."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from .engine_log import EngineLog
from .messages import Died, Event, Ready, Request, Shutdown
from .options import EngineOptions
from .process import main

_LEAVE_S = 5  # for a step to end, and torch with it; one that still loads has nothing to end
_SPAWN = multiprocessing.get_context("spawn")


class _Writer:
    """Sends requests from a thread of its own: an engine that is in a long step reads none for a
    while, and a prompt that is longer than a pipe holds must not keep the interface waiting."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="requests", daemon=True)
        self._thread.start()

    def put(self, request: Request) -> None:
        self._requests.put(request)

    def close(self) -> None:
        """Send what is left and end; not where nobody reads any more."""
        self._requests.put(None)
        self._thread.join(timeout=2)

    def _run(self) -> None:
        with suppress(OSError):  # the engine is gone; ``events`` says so
            while (request := self._requests.get()) is not None:
                self._connection.send(request)


class EngineClient:
    """Starts the engine in its own process and talks to it in typed messages.

    ``send`` never waits. ``events`` may be called from any one thread.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.log = EngineLog()
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None
        self._writer: _Writer | None = None
        self._loaded = False

    def start(self) -> None:
        """Start the process; events (Loading, then Ready or Failed) follow."""
        self.log.prepare()
        ours, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=main,
            args=(self.options, theirs, str(self.log.path)),
            name="pkvchat-engine",
            daemon=True,
        )
        self._process.start()
        theirs.close()
        self._connection = ours
        self._writer = _Writer(ours)
        self._loaded = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def send(self, request: Request) -> None:
        """To an engine that is gone nothing is sent; ``events`` says that it is."""
        if self._writer is not None:
            self._writer.put(request)

    def events(self, timeout: float | None = None) -> list[Event]:
        """What the engine said since, waiting up to ``timeout`` seconds (None: for ever).

        Died comes once, as the last event of a process.
        """
        connection = self._connection
        if connection is None:
            return []
        try:
            events: list[Event] = connection.recv() if connection.poll(timeout) else []
        except (EOFError, OSError):
            if self._connection is connection:
                self._connection = None
            return [Died(self._why())]
        self._loaded = self._loaded or any(isinstance(event, Ready) for event in events)
        return events

    def close(self) -> None:
        """End the process: asked first, then made to."""
        self.send(Shutdown())
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        if process is not None:
            process.join(timeout=_LEAVE_S if self._loaded else 0)
            given_up = process.is_alive()
            if given_up:
                process.kill()
                process.join()
            if process.exitcode == 0 or (given_up and not self._loaded):
                self.log.remove()
            else:
                self.log.keep(process.pid)  # it may say why
        if connection is not None:
            connection.close()

    def _why(self) -> str:
        code = None
        if self._process is not None:
            self._process.join(timeout=2)
            code = self._process.exitcode
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        log = self.log.keep(self.pid) if code else self.log.path
        return f"the engine process ended ({how}); its log is {log}"
