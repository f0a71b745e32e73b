"""A checkpoint's configuration entries, looked up with checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from .errors import ModelError

T = TypeVar("T", int, float, str, bool)
_REQUIRED: Any = object()


class Metadata:
    """``entries`` of the file ``path``, each read as the type asked for."""

    def __init__(self, path: Path, entries: Mapping[str, Any]) -> None:
        self.path, self.entries = path, entries

    def get(self, key: str, kind: type[T], default: T = _REQUIRED) -> T:
        """Raises ModelError where the entry is of another type, or absent with no ``default``."""
        value = self.entries.get(key)
        if value is None:
            if default is _REQUIRED:
                raise ModelError(
                    f"{self.path}: the needed entry '{key}' is missing: the file is incomplete or"
                    " of an unsupported kind, fetch another"
                )
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return kind(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ModelError(
                f"{self.path}: entry '{key}' is {value!r:.60}, not of type {kind.__name__}:"
                " the file is damaged, fetch it again"
            )
        return value

    def size(self, key: str, default: int = _REQUIRED) -> int:
        """A count: an integer above 0 (and below 2**31)."""
        value = self.get(key, int, default)
        if not 0 < value < 1 << 31:
            raise ModelError(
                f"{self.path}: entry '{key}' is {value}, which cannot be: the file is damaged,"
                " fetch it again"
            )
        return value
