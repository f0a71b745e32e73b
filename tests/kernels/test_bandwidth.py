"""The bandwidth probe reads everything it is given."""

from __future__ import annotations

import pytest
import torch

from pkvchat.kernels.bandwidth import read_bandwidth


@pytest.mark.parametrize("numel", [1, 63, 64, 1000, 6 * 64 * 3])
def test_every_number_is_read(triton_device, numel):
    pytest.importorskip("triton")
    from pkvchat.kernels.bandwidth_triton import read_all

    values = torch.zeros(numel, dtype=torch.int32, device=triton_device)
    assert read_all(values, block=64).sum() == 0
    for at in {0, numel // 2, numel - 1}:
        values.zero_()
        values[at] = 7
        assert read_all(values, block=64).sum() == 7


def test_there_is_a_bandwidth():
    assert read_bandwidth(torch.device("cpu")) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("free", [80 << 20, 128 << 20, 1000 << 20, 2 << 30, 8 << 30])
def test_there_is_a_bandwidth_within_a_memory_limit(free):
    device = torch.device("cuda")
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    limit = torch.cuda.memory_reserved(device) + free
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        assert read_bandwidth(device) > 0
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.gpu
def test_a_full_gpu_has_no_bandwidth():
    device = torch.device("cuda")
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved(device) / total)
    try:
        assert read_bandwidth(device) is None
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
