"""Shared by the tests that run the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def cli_env(tmp_path):
    """An environment whose user has no files yet."""
    folders = {
        f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("CONFIG", "CACHE", "DATA")
    }
    return {**os.environ, **folders, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def run_cli(cli_env):
    """Runs ``pkvchat ARGS`` without a terminal; standard input is ``stdin``, bytes."""

    def run(*args: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pkvchat", *map(str, args)]
        done = subprocess.run(command, input=stdin, env=cli_env, capture_output=True, timeout=120)
        return subprocess.CompletedProcess(
            command, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    return run
