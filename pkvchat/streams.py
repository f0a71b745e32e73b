"""Standard input, output and error, as whoever started the program has left them."""

from __future__ import annotations

import errno
import os
import sys
from typing import TypeGuard

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def open_standard_streams() -> None:
    """Those that are closed become /dev/null: Python has None for them, and the next file opened
    would get their number, with what libraries print written into it.

    A character that the terminal's encoding lacks is written as "?".
    """
    number = os.open(os.devnull, os.O_RDWR)
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if hasattr(sys.stdout, "reconfigure"):  # not one that a test has put there
        sys.stdout.reconfigure(errors="replace")


def is_failed_write(error: Exception) -> TypeGuard[OSError]:
    """Whether it comes from standard output: errors of files that the program opens by name are
    told where they are opened, and name them."""
    return isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM


def drop_output() -> None:
    """Python would complain once more about what is still buffered when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
