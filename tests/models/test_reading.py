"""Reading tensors in parts: whatever their size, order and types, and from files that shrink."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pkvchat.models import reading
from pkvchat.models.errors import ModelError
from pkvchat.models.reading import PartRunner, StoredTensor

CPU = torch.device("cpu")
START = 5  # stored tensors need no alignment
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def store(path: Path, values: torch.Tensor) -> StoredTensor:
    path.write_bytes(b"x" * START + values.view(torch.uint8).numpy().tobytes())
    return StoredTensor(path.open("rb"), START, values.dtype)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 40),
    width=st.integers(1, 9),
    stored=st.sampled_from(DTYPES),
    wanted=st.sampled_from(DTYPES),
    moved=st.booleans(),
    add=st.sampled_from([0.0, 1.0]),
)
def test_parts_make_the_whole(tmp_path, monkeypatch, rows, width, stored, wanted, moved, add):
    monkeypatch.setattr(reading, "PART_BYTES", 64)
    values = torch.randn(rows, width).to(stored)
    places = torch.randperm(rows) if moved else None
    out = torch.full((rows, width), torch.nan, dtype=wanted)
    runner = PartRunner(CPU)
    runner.submit(store(tmp_path / "a", values).parts(out, places=places, add=add))
    runner.wait()
    expected = (values.float() + add).to(wanted) if add else values.to(wanted)
    assert torch.equal(out if places is None else out[places], expected)


def test_a_file_that_shrinks_meanwhile(tmp_path):
    stored = store(tmp_path / "a", torch.ones(1000))
    (tmp_path / "a").write_bytes(b"x" * 100)
    runner = PartRunner(CPU)
    runner.submit(stored.parts(torch.empty(1000)))
    with pytest.raises(ModelError, match="a: became shorter while it was read"):
        runner.wait()


@pytest.mark.gpu
def test_onto_a_gpu(tmp_path):
    values = torch.randn(3_000_000, 3)  # some parts
    out = torch.empty(3_000_000, 3, dtype=torch.bfloat16, device="cuda")
    runner = PartRunner(out.device)
    runner.submit(store(tmp_path / "a", values).parts(out))
    runner.wait()
    assert torch.equal(out.cpu(), values.bfloat16())
