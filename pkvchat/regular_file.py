"""What may be read whole: a file, which has an end."""

from __future__ import annotations

import errno
import stat
from pathlib import Path


def check_regular(path: Path) -> None:
    """Raises OSError where there is no file: reading a pipe or a device might never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is no file", str(path))
