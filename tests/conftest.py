"""Suite-wide set-up: Triton's interpreter where there is no GPU, and skips for ``gpu`` tests."""

from __future__ import annotations

import os

# The suite runs in one process per core; threads of several that wait for each other only spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Decode batches are looked into, as with --debug.
os.environ["PKVCHAT_CHECK_CONTENTS"] = "1"

import pytest
import torch

# Triton decides when a kernel is defined, so this comes before any test imports one.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def pytest_runtest_setup() -> None:
    torch.manual_seed(0)  # so that what a test draws does not depend on those before it
