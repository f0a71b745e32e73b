"""What a command is: one entry serves the keys, the palette, the slash and the help."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

H = TypeVar("H", contravariant=True)
Complete = Callable[[Any, str], list[str]]  # the host and an argument's start: what it may become


class CommandError(Exception):
    """A command cannot do what was asked; ``str(e)`` is the one line to show."""


def no_completion(_host: object, _start: str) -> list[str]:
    return []


@dataclass(frozen=True)
class Command(Generic[H]):
    """run: takes the host and the text after the slash command's name ("" from key or palette).

    what: one line; "" keeps it out of lists. keys: Textual's key names, "" for none.
    slash: the name after "/", "" for none. argument: how the help shows what follows it: NAME,
    or [NAME] where that may be left out.
    """

    name: str
    what: str
    run: Callable[[H, str], None]
    keys: str = ""
    slash: str = ""
    argument: str = ""
    complete: Complete = no_completion

    @property
    def usage(self) -> str:
        """``/set NAME VALUE``; "" without a slash name."""
        return f"/{self.slash} {self.argument}".rstrip() if self.slash else ""


def one_of(names: Iterable[str]) -> Complete:
    """Completes to one of ``names``."""
    known = list(names)
    return lambda _, start: [name for name in known if name.startswith(start)]


def whole(text: str) -> int:
    """The number that ``text`` is, -1 where it is none, or longer than any number of things."""
    return int(text) if text.isdecimal() and len(text) < 20 else -1


def as_path(name: str) -> Path:
    """Raises CommandError for what can name no file: a NUL in it, a home of nobody, too long."""
    try:
        path = Path(name).expanduser()
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # whoever opens it says so
    except (OSError, RuntimeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"{name[:60]!r} can name no file here: {why}") from error
    return path


def paths(_host: object, start: str) -> list[str]:
    """Files and folders (those with a / at the end) whose path begins with ``start``."""
    folder, slash, name = start.rpartition("/")
    try:
        base = as_path(folder or slash or ".")
        found = sorted(path for path in base.iterdir() if path.name.startswith(name))
    except (CommandError, OSError):
        return []
    return [
        f"{folder}{slash}{path.name}{'/' if _is_folder(path) else ''}"
        for path in found
        if name.startswith(".") or not path.name.startswith(".")
    ]


def _is_folder(path: Path) -> bool:
    with suppress(OSError):  # a link into a folder that may not be looked into
        return path.is_dir()
    return False
