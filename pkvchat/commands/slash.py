"""Lines as they are typed: one slash begins a command, two of them a prompt that has one."""

from __future__ import annotations


def is_command(line: str) -> bool:
    return line.startswith("/") and not line.startswith("//")


def to_prompt(line: str) -> str:
    """What a ``line`` that is no command says."""
    return line[1:] if line.startswith("//") else line


def to_line(prompt: str) -> str:
    """How ``prompt`` is typed."""
    return f"/{prompt}" if prompt.startswith("/") else prompt
