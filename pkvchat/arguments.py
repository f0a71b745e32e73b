"""Types of command-line arguments, made of the rules that settings keep to."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from .settings import Rule

_QUOTED = 60  # characters of a value that an error repeats


def quoted(text: str) -> str:
    """The value as an error repeats it, where it is long its start alone."""
    return repr(text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…")


def by_rule(rule: Rule) -> Callable[[str], Any]:
    """A value as ``rule`` reads it."""

    def parse(text: str) -> Any:
        try:
            return rule.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{quoted(text)} {error}") from None

    return parse


def list_of(rule: Rule) -> Callable[[str], list[Any]]:
    """Values with commas between them."""
    one = by_rule(rule)
    return lambda text: [one(part) for part in text.split(",")]
