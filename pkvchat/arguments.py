"""Types of command-line arguments, made of the rules that settings keep to."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from .settings import Rule


def by_rule(rule: Rule) -> Callable[[str], Any]:
    """A value as ``rule`` reads it."""

    def parse(text: str) -> Any:
        try:
            return rule.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} {error}") from None

    return parse


def list_of(rule: Rule) -> Callable[[str], list[Any]]:
    """Values with commas between them."""
    one = by_rule(rule)
    return lambda text: [one(part) for part in text.split(",")]
