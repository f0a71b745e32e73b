"""Standard streams that are closed, full or of a small encoding."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from pkvchat.streams import is_failed_write

TALK = """
import os, sys
from pkvchat.streams import open_standard_streams
open_standard_streams()
read = sys.stdin.read()
print("out \u2603", flush=True)
print("err", file=sys.stderr, flush=True)
sys.exit(10 * (read == "") + (os.open(os.devnull, os.O_RDONLY) > 2))
"""


def talk(streams: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", f'exec "$0" -c "$1" {streams}', sys.executable, TALK]
    return subprocess.run(command, input="", env=env, capture_output=True, text=True)


@pytest.mark.parametrize("streams", ["", "<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_empty_and_their_numbers_stay_taken(streams: str) -> None:
    done = talk(streams, PYTHONUTF8="1")
    assert done.returncode == 11
    assert done.stdout == ("" if " >&-" in f" {streams}" else "out \u2603\n")
    assert done.stderr == ("" if "2>&-" in streams else "err\n")


def test_a_character_that_the_encoding_lacks_is_replaced() -> None:
    assert talk("", PYTHONIOENCODING="ascii").stdout == "out ?\n"


def test_a_full_disk_under_the_output_is_told(cli_env: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pkvchat", "models"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=cli_env)
    assert done.returncode == 1
    assert done.stderr == "pkvchat: cannot write the output: No space left on device\n"


def test_errors_of_named_files_are_none_of_the_output() -> None:
    assert is_failed_write(OSError(errno.EIO, "x"))
    assert not is_failed_write(OSError(errno.EIO, "x", "some-file"))
    assert not is_failed_write(ValueError("x"))
