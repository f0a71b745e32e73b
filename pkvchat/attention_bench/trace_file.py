"""Requests from a file: CSV with a header, or a JSON array of objects.

Columns: ``prompt_len`` or ``prompt``, ``decode_len`` or ``decode``, and perhaps ``arrival`` or
``arrival_step``, 0 where there is none. Others are not looked at.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ChatError
from .traces import Request

MAX_TOKENS = 1 << 20
_MAX_STEP = 1 << 30
_MAX_BYTES = 16 << 20
_DIGITS = re.compile(r" *[0-9]{1,20} *")  # int() takes more: "1_6", other scripts' digits

_Table = Sequence[Mapping[str, Any]]


def read_trace(path: Path) -> list[Request]:
    """Raises ChatError, which names the row (from 1) and the column of what is wrong."""
    text = _read(path)
    rows = _json_rows(path, text) if path.suffix.lower() == ".json" else _csv_rows(path, text)
    if not rows:
        raise ChatError(f"{path} has no requests: give at least one row")
    return [_request(path, number, row) for number, row in enumerate(rows, 1)]


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ChatError(f"cannot read the trace file {path}: {error.strerror}") from error
    if len(raw) > _MAX_BYTES:
        raise ChatError(f"the trace file {path} has more than {_MAX_BYTES} bytes: shorten it")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ChatError(
            f"the trace file {path} is not UTF-8: byte {raw[error.start]:#04x} at {error.start}"
        ) from error


def _csv_rows(path: Path, text: str) -> _Table:
    try:
        reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
        names = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = names
        rows = list(reader)
    except csv.Error as error:
        raise ChatError(f"the trace file {path} is not CSV: {error}") from error
    for choices in (("prompt_len", "prompt"), ("decode_len", "decode")):
        if not set(choices) & set(names):
            found = ", ".join(names) or "none"
            raise ChatError(f"{path}: no column {' or '.join(choices)}; the columns are {found}")
    return rows


def _json_rows(path: Path, text: str) -> _Table:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ChatError(f"the trace file {path} is not JSON: {error}") from error
    if not isinstance(rows, list):
        raise ChatError(f"{path} holds a {type(rows).__name__}: give a list of objects")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ChatError(f"{path}, row {number}: {row!r:.40} is not an object")
    return rows


def _request(path: Path, number: int, row: Mapping[str, Any]) -> Request:
    def value(names: tuple[str, str], low: int, high: int, default: int | None = None) -> int:
        name = next((name for name in names if row.get(name) not in (None, "")), None)
        if name is None:
            if default is not None:
                return default
            raise ChatError(f"{path}, row {number}: no value in column {' or '.join(names)}")
        found = _whole(row[name])
        if found is None or not low <= found <= high:
            raise ChatError(
                f"{path}, row {number}, column {name}: {row[name]!r:.40} is not a whole number "
                f"from {low} to {high}"
            )
        return found

    prompt = value(("prompt_len", "prompt"), 1, MAX_TOKENS)
    decode = value(("decode_len", "decode"), 1, MAX_TOKENS)
    return Request(prompt, decode, value(("arrival", "arrival_step"), 0, _MAX_STEP, default=0))


def _whole(value: object) -> int | None:
    if type(value) is int:
        return value
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else None
