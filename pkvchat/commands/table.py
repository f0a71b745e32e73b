"""Commands in one table: found by name, by what was typed, and completed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from pkvchat.clean import one_line

from .command import Command, CommandError

H = TypeVar("H")

_ALSO_KNOWN = {"quit": "bye", "exit": "bye"}  # what people type for a command that is called else


class CommandTable(Generic[H]):
    """by_name and by_slash: the commands, in their order. elsewhere: who has others."""

    def __init__(self, commands: Iterable[Command[H]], elsewhere: str = "") -> None:
        self._elsewhere = f"; {elsewhere}" if elsewhere else ""
        self.by_name = {command.name: command for command in commands}
        self.by_slash = {c.slash: c for c in self.by_name.values() if c.slash}

    def find(self, line: str) -> tuple[Command[H], str]:
        """The command that ``line``, which begins with a slash, asks for, and its argument.

        Raises CommandError where there is none, or one that takes no argument was given one.
        """
        name, _, argument = line[1:].partition(" ")
        name = _ALSO_KNOWN.get(name.strip(), name)
        command = self.by_slash.get(name.strip())
        if command is None:
            raise CommandError(
                f"There is no /{one_line(name)[:40]}; {self._like(name.strip())}{self._elsewhere}. "
                "Begin with // to send it."
            )
        if argument.strip() and not command.argument:
            raise CommandError(f"/{command.slash} takes nothing after its name; nothing was done")
        return command, argument.strip()

    def _like(self, name: str) -> str:
        """Where to look instead: the commands that begin so, else the list of all."""
        alike = [f"/{command.slash}" for command in self.named(name) if name]
        return f"there is {', '.join(alike)}" if alike else "/help lists what there is"

    def named(self, start: str) -> list[Command[H]]:
        """Those whose slash name begins with ``start``, by the alphabet."""
        return [self.by_slash[name] for name in sorted(self.by_slash) if name.startswith(start)]

    def completions(self, host: H, line: str) -> list[str]:
        """What ``line``, the start of a slash command, may go on to be."""
        if not line.startswith("/") or "\n" in line:
            return []
        name, space, start = line[1:].partition(" ")
        if not space:
            return [f"/{command.slash}" for command in self.named(name)]
        command = self.by_slash.get(name)
        return [f"/{name} {text}" for text in command.complete(host, start)] if command else []
