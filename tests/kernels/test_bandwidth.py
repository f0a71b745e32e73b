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
def test_there_is_a_bandwidth_on_the_gpu():
    assert read_bandwidth(torch.device("cuda")) > 0
