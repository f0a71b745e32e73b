"""What can go wrong around the engine, as one line for a person."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pkvchat.kernels.attention.strategy import StrategyUnavailable
from pkvchat.models.errors import ModelError

_NO_MEMORY = ("can't allocate memory", "can't start new thread")  # torch's and Python's words
INTERRUPTED = 130  # the exit code that shells report for Ctrl+C


class ChatError(Exception):
    """``str(e)`` is the whole message: what is wrong, the value, what to do."""

    exit_code = 1


class UsageError(ChatError):
    """A flag, a setting or a combination of them makes no sense."""

    exit_code = 2


@contextmanager
def startup_errors() -> Iterator[None]:
    """Turns what starting an engine may raise for a person to read into ChatError."""
    try:
        yield
    except (ModelError, StrategyUnavailable, ValueError, OSError) as error:
        raise ChatError(str(error)) from error
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(w in str(error) for w in _NO_MEMORY):
            raise
        raise ChatError(
            "this machine has too little memory left: end other programs, or take a smaller "
            "model, context or --kv-memory"
        ) from error
