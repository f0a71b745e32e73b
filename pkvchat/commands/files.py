"""Commands that put files into the prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pkvchat.clean import typed
from pkvchat.regular_file import check_regular

from .command import Command, CommandError, as_path, paths
from .host import Host

_READ_LIMIT = 4_000_000  # bytes, over all files; more never fits a context
_FOLDERS = 2_000  # that /glob looks into at most


def read(host: Host, name: str) -> None:
    if not name:
        raise CommandError("/read needs the name of a file")
    _put_in_prompt(host, [as_path(name)])


def glob(host: Host, pattern: str) -> None:
    if not pattern:
        raise CommandError("/glob needs a pattern such as src/*.py")
    try:
        found = sorted({path for path in _matches(pattern) if path.is_file()})
    except (OSError, ValueError, NotImplementedError, IndexError):  # "/x", "a**", "."
        found = []
    if not found:
        raise CommandError(f"no file is named {pattern[:60]!r} below {Path().resolve()}")
    _put_in_prompt(host, found)


def _matches(pattern: str) -> Iterator[Path]:
    """As ``Path().glob``, which in a large tree would keep the screen waiting for minutes."""
    folders = 0

    def below(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
        nonlocal folders
        folders += 1
        if folders > _FOLDERS:
            raise CommandError(
                f"/glob {pattern[:60]} looks into more than {_FOLDERS:,} folders: begin with one"
            )
        if parts[0] != "**":
            for path in folder.glob(parts[0]):
                yield from below(path, parts[1:]) if parts[1:] else (path,)
            return
        yield from below(folder, parts[1:]) if parts[1:] else ()
        with suppress(OSError):  # one that may not be read
            for path in sorted(folder.iterdir()):
                if path.is_dir() and not path.is_symlink():
                    yield from below(path, parts)

    return below(Path(), Path(pattern).parts)


def _put_in_prompt(host: Host, files: Sequence[Path]) -> None:
    parts = []
    room = _READ_LIMIT
    for path in files:
        try:
            check_regular(path)
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
