"""Dense products of a few rows by our own kernel, and the choice between it and the library."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from pkvchat.kernels.policy import measure_products
from pkvchat.kernels.policy.measure_products import choose_products
from pkvchat.kernels.policy.records import Store
from pkvchat.kernels.products.gemv_triton import GemvConfig, gemv
from pkvchat.kernels.products.linear import Linear, LinearTypes

ACTIVATIONS = {"silu": F.silu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("activation", ["", *ACTIVATIONS])
@pytest.mark.parametrize(("num_x", "rows", "width"), [(1, 13, 96), (2, 16, 256), (2, 7, 360)])
def test_against_fp64(triton_device, num_x, rows, width, activation, dtype):
    """Rows that fill the programs and that don't, walks with a tail and without."""
    size = (2 * rows if activation else rows, width)
    weight, x, bias = torch.randn(size).to(dtype), torch.randn(num_x, width).to(dtype), None
    if num_x > 1:
        bias = torch.randn(size[0]).to(dtype)
    whole = torch.full((num_x, rows + 3), float("nan"), device=triton_device)
    gemv(
        weight.to(triton_device),
        x.to(triton_device),
        whole[:, 1:-2],
        None if bias is None else bias.to(triton_device),
        activation,
        GemvConfig(rows=4, block=128, warps=2),
    )
    expected = x.double() @ weight.double().T + (0 if bias is None else bias)
    if activation:
        gates, ups = expected.chunk(2, -1)
        expected = ACTIVATIONS[activation](gates) * ups
    error = (whole[:, 1:-2].cpu().double() - expected).norm() / expected.norm()
    assert error < 2e-6
    assert whole[:, [0, -2, -1]].isnan().all()


def linears(device="cpu"):
    types = LinearTypes.uniform(torch.float32)
    sizes = [(24, 64), (24, 64), (8, 32)]
    return [Linear(torch.randn(size, device=device), types=types) for size in sizes]


def test_takes_a_choice_from_its_record(tmp_path, monkeypatch):
    """Measured once a shape; later starts, and other models, read what is known."""
    limits = {(24, 64): 2, (8, 32): 0, (16, 32): 1}
    measured = []

    def limit(same):
        measured.append(tuple(same[0].weight.shape))
        return limits[measured[-1]]

    monkeypatch.setattr(measure_products, "_limit", limit)
    monkeypatch.setattr(measure_products, "device_key", lambda device: {"device": "a GPU"})
    first = linears()
    choose_products(first, Store(tmp_path))
    assert [linear.gemv_rows for linear in first] == [2, 2, 0]
    assert measured == [(24, 64), (8, 32)]
    types = LinearTypes.uniform(torch.float32)
    later = [*linears(), Linear(torch.randn(16, 32), types=types)]
    choose_products(later, Store(tmp_path))
    assert [linear.gemv_rows for linear in later] == [2, 2, 0, 1]
    assert measured[2:] == [(16, 32)]


def test_measures_again_what_it_cannot_read(tmp_path, monkeypatch):
    monkeypatch.setattr(measure_products, "_limit", lambda same: 1)
    monkeypatch.setattr(measure_products, "device_key", lambda device: {"device": "a GPU"})
    store = Store(tmp_path)
    store.save("products", {"device": "a GPU"}, {"24x64 torch.float32": 77})
    found = linears()
    choose_products(found, store)
    assert [linear.gemv_rows for linear in found] == [1, 1, 1]
    assert "damaged" in store.notes[0]


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_both_ways_agree(triton_device, activation):
    linear, x = linears(triton_device)[0], torch.randn(2, 64, device=triton_device)
    product, gated = linear(x), linear.gated(x, activation)
    linear.gemv_rows = 2
    torch.testing.assert_close(linear(x), product, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(linear.gated(x, activation), gated, rtol=1e-5, atol=1e-5)
    many = torch.randn(3, 64, device=triton_device)  # one row more than the kernel takes
    torch.testing.assert_close(linear(many), many @ linear.weight.T)


@pytest.mark.gpu
def test_measures_on_the_device(tmp_path):
    found = [
        Linear(torch.randn(1024, 1024, device="cuda"), types=LinearTypes.uniform(torch.bfloat16))
        for _ in range(4)
    ]
    store = Store(tmp_path)
    choose_products(found, store)
    assert found[0].gemv_rows in (0, *measure_products.ROWS)
    again = found[:1]
    again[0].gemv_rows = -1
    choose_products(again, Store(tmp_path))
    assert again[0].gemv_rows == found[1].gemv_rows
