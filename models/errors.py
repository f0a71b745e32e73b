"""What can go wrong with a model, as one line for a person."""

from __future__ import annotations


class ModelError(Exception):
    """A model file, name or template is unusable; ``str(e)`` is the one line to show."""

    def __init__(self, message: str) -> None:
        """Names out of a damaged file may hold anything; what is not printable becomes "?"."""
        super().__init__("".join(char if char.isprintable() else "?" for char in message))


class GatedError(ModelError):
    """The hub gives these files only to those who have accepted their licence."""
