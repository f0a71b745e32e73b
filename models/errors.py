"""What can go wrong with a model, as one line for a person."""

from __future__ import annotations


class ModelError(Exception):
    """A model file, name or template is unusable; ``str(e)`` is the one line to show."""
