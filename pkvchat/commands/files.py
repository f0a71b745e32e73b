"""Commands that put files into the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pkvchat.clean import typed

from .command import Command, CommandError, as_path, paths
from .host import Host

_READ_LIMIT = 4_000_000  # bytes, over all files; more never fits a context


def read(host: Host, name: str) -> None:
    _put_in_prompt(host, [as_path(name)] if name else [])


def glob(host: Host, pattern: str) -> None:
    try:
        found = sorted(path for path in Path().glob(pattern) if path.is_file())
    except (OSError, ValueError, NotImplementedError, IndexError):  # "", "/x", "**x", "."
        found = []
    _put_in_prompt(host, found)


def _put_in_prompt(host: Host, files: Sequence[Path]) -> None:
    if not files:
        raise CommandError("no file is named so here")
    parts = []
    room = _READ_LIMIT
    for path in files:
        if path.exists() and not path.is_file():  # reading a pipe or a device might never end
            raise CommandError(f"cannot read {path}: it is no file")
        try:
            room -= path.stat().st_size
            if room < 0:
                raise CommandError(f"up to {path} that is more than {_READ_LIMIT:,} bytes")
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise CommandError(f"cannot read {path}: {error.strerror}") from error
        parts.append(f"{path.name}:\n```\n{typed(text)}\n```\n")
    host.put_in_prompt("\n".join(parts))


COMMANDS: tuple[Command[Host], ...] = (
    Command("read", "put a file into the prompt", read, "", "read", "FILE", paths),
    Command("glob", "put files into the prompt", glob, slash="glob", argument="PATTERN"),
)
