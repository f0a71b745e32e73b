"""Where the engine process prints: a file in a temporary folder of the program that started it."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from .errors import ChatError

_NAME = "engine.log"


class EngineLog:
    """path: what the engine process that runs, or ran last, prints to."""

    def __init__(self) -> None:
        """Raises ChatError where there is no room for one."""
        try:
            _remove_orphans()
            self.path = Path(tempfile.mkdtemp(prefix=f"pkvchat-{os.getpid()}-")) / _NAME
        except OSError as error:
            raise ChatError(
                f"no folder for the engine's log can be made ({error}); set TMPDIR to one with room"
            ) from error

    def prepare(self) -> None:
        """Have a folder for it, which ``remove`` may have taken away."""
        self.path.parent.mkdir(mode=0o700, exist_ok=True)

    def keep(self, pid: int | None) -> Path:
        """Under a name of its own, so that neither the next process nor ``remove`` takes it."""
        kept = self.path.with_stem(f"engine-{pid}")
        try:
            return self.path.rename(kept)
        except OSError:  # of a process that ended before it had one
            return self.path

    def remove(self) -> None:
        """And the folder, unless logs are kept in it."""
        _remove(self.path)


def _remove(log: Path) -> None:
    with suppress(OSError):
        log.unlink(missing_ok=True)
        log.parent.rmdir()


def _remove_orphans() -> None:
    """Logs of programs that were killed; one that was kept stays for whoever was told of it."""
    for folder in Path(tempfile.gettempdir()).glob("pkvchat-*-*"):
        owner = folder.name.split("-")[1]
        if owner.isdecimal() and not folder.is_symlink() and not _runs(int(owner)):
            _remove(folder / _NAME)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # which sends nothing
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's, or no program's name for a folder
        pass
    return True
