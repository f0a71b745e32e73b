"""A checkpoint's configuration entries, looked up with checks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from .errors import ModelError

T = TypeVar("T")
_REQUIRED: Any = object()


class Metadata:
    """``entries`` of the file ``path``, each read as the type asked for. All raise ModelError."""

    def __init__(self, path: Path, entries: Mapping[str, Any]) -> None:
        self.path, self.entries = path, entries

    def __contains__(self, key: str) -> bool:
        return self.entries.get(key) is not None

    def get(self, key: str, kind: type[T], default: T = _REQUIRED) -> T:
        """The entry, or ``default`` where it is absent or null."""
        value: Any = self.entries.get(key)
        if value is None:
            value = self._absent(key) if default is _REQUIRED else default
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self._wrong(key, f"{value!r:.60}, not of type {kind.__name__}")
        found: T = value
        return found

    def size(self, key: str, default: int = _REQUIRED) -> int:
        """A count: an integer above 0 and below 2**31."""
        value = self.get(key, int, default)
        if not 0 < value < 1 << 31:
            raise self._wrong(key, f"{value}, which cannot be")
        return value

    def positive(self, key: str, default: float = _REQUIRED) -> float:
        """A number above 0 that is finite."""
        value = self.get(key, float, default)
        if not 0 < value < math.inf:
            raise self._wrong(key, f"{value}, which cannot be")
        return value

    def items(self, key: str, kind: type[T]) -> list[T]:
        """A list whose first item is checked to be a ``kind``."""
        value = self.entries.get(key)
        if value is None:
            self._absent(key)
        if not isinstance(value, list) or (value and type(value[0]) is not kind):
            raise self._wrong(key, f"not a list of {kind.__name__}")
        return value

    def _absent(self, key: str) -> Any:
        raise ModelError(
            f"{self.path}: the needed entry '{key}' is missing: the file is incomplete or of a"
            " kind that is not supported, fetch another"
        )

    def _wrong(self, key: str, what: str) -> ModelError:
        return ModelError(
            f"{self.path}: entry '{key}' is {what}: the file is damaged, fetch it again"
        )
