"""What can go wrong around the engine, as one line for a person."""

from __future__ import annotations


class ChatError(Exception):
    """``str(e)`` is the whole message: what is wrong, the value, what to do."""

    exit_code = 1


class UsageError(ChatError):
    """A flag, a setting or a combination of them makes no sense."""

    exit_code = 2
