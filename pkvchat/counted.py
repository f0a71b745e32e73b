"""How many there are of something, in words."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """``1 split``, ``1,024 splits``; for nouns whose plural ends in a mere s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
