"""The small kernels between products, against their torch definitions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from pkvchat.kernels.activation_triton import gated_triton
from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.attention.kv import allocate_kv, kv_rows
from pkvchat.kernels.attention.kv_triton import write_kv_triton
from pkvchat.kernels.attention.qkv import HeadNorm, split_qkv
from pkvchat.kernels.attention.qkv_triton import store_qkv_triton
from pkvchat.kernels.norm_triton import add_rms_norm_triton, rms_norm_triton
from pkvchat.kernels.rope_triton import apply_rope_triton

TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3}


@pytest.fixture(params=TOLERANCE, ids=str)
def dtype(request):
    return request.param


def random(device, dtype, *size):
    return torch.randn(size, device=device).to(dtype)


def assert_close(out, expected, dtype):
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("size", [(3, 576), (2, 4, 64), (0, 64)], ids=str)
def test_rms_norm(triton_device, dtype, size):
    x, weight = random(triton_device, dtype, *size), random(triton_device, dtype, size[-1])
    expected = F.rms_norm(x.double(), size[-1:], weight.double(), 1e-5)
    assert_close(rms_norm_triton(x, weight, 1e-5), expected, dtype)


def test_rms_norm_of_some_heads_of_a_row(triton_device):
    x = random(triton_device, torch.float32, 3, 7, 64)[:, 2:5]
    weight = random(triton_device, torch.float32, 64)
    expected = F.rms_norm(x.double(), (64,), weight.double(), 1e-5)
    assert_close(rms_norm_triton(x, weight, 1e-5), expected, torch.float32)


@pytest.mark.parametrize("residual_dtype", TOLERANCE, ids=str)
def test_add_rms_norm(triton_device, dtype, residual_dtype):
    x, weight = random(triton_device, dtype, 3, 576), random(triton_device, dtype, 576)
    residual = random(triton_device, residual_dtype, 3, 576)
    out, total = add_rms_norm_triton(x, residual, weight, 1e-5)
    assert torch.equal(total, residual + x)
    assert_close(out, F.rms_norm(total.double(), (576,), weight.double(), 1e-5), dtype)


@pytest.mark.parametrize(("head_dim", "half"), [(64, 32), (80, 40), (96, 16)])
def test_rope(triton_device, dtype, head_dim, half):
    """A part of each row's heads; rotations of whole heads and of their first dimensions."""
    x = random(triton_device, dtype, 3, 13, head_dim)[:, :11]
    angle = torch.rand(3, half, device=triton_device) * 6
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    first, second = x.double()[..., :half], x.double()[..., half : 2 * half]
    c, s = cos.double()[:, None], sin.double()[:, None]
    rotated = (first * c - second * s, second * c + first * s, x.double()[..., 2 * half :])
    assert_close(apply_rope_triton(x, cos, sin), torch.cat(rotated, -1), dtype)


@pytest.mark.parametrize("head_dim", [64, 80])
def test_write_kv(triton_device, head_dim):
    shape = AttentionShape(2, 2, head_dim, 16, torch.float16, triton_device)
    (kv,) = allocate_kv(1, 4, shape)
    kv.zero_()
    qkv = random(triton_device, torch.float32, 3, 6, head_dim)
    slots = torch.tensor([17, 63, 5], device=triton_device)
    write_kv_triton(kv, kv_rows(slots, kv), qkv[:, 2:4], qkv[:, 4:])
    expected = torch.zeros_like(kv)
    for token, slot in enumerate(slots.tolist()):
        expected[slot // 16, 0, :, slot % 16] = qkv[token, 2:4]
        expected[slot // 16, 1, :, slot % 16] = qkv[token, 4:]
    assert torch.equal(kv, expected)


@pytest.mark.parametrize("width", [576, 512, 40])
def test_gated_activations(triton_device, dtype, width):
    gate_up = random(triton_device, dtype, 3, 2 * width) * 3
    gate, up = gate_up.double().chunk(2, -1)
    assert_close(gated_triton(gate_up, "silu"), F.silu(gate) * up, dtype)
    gelu = F.gelu(gate, approximate="tanh") * up
    assert_close(gated_triton(gate_up, "gelu_tanh"), gelu, dtype)


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(("head_dim", "half"), [(64, 32), (80, 40), (96, 16), (64, 0)])
def test_store_qkv(triton_device, head_dim, half, normed):
    """The whole step in one kernel; every slot but its own keeps what it has."""
    shape = AttentionShape(9, 3, head_dim, 16, torch.float16, triton_device)
    (kv,) = allocate_kv(1, 4, shape)
    kv.fill_(float("nan"))
    qkv = random(triton_device, torch.float32, 3, 17, head_dim)[:, 1:16]
    slots = torch.tensor([17, 63, 5], device=triton_device)
    angle = torch.rand(3, half, device=triton_device) * 6
    rotation = (angle.cos(), angle.sin()) if half else None
    norm = None
    if normed:
        norm = HeadNorm(*random(triton_device, torch.float32, 2, head_dim), eps=1e-5)
    q = store_qkv_triton(qkv, rotation, norm, kv, kv_rows(slots, kv))
    wide_norm = norm and HeadNorm(norm.q.double().cpu(), norm.k.double().cpu(), 1e-5)
    wide = rotation and tuple(part.double().cpu() for part in rotation)
    expected, k, v = split_qkv(qkv.double().cpu(), 3, wide, wide_norm)
    torch.testing.assert_close(q.cpu().double(), expected, rtol=1e-5, atol=1e-5)
    for token, slot in enumerate(slots.tolist()):
        for stored, given in zip(kv[slot // 16, :, :, slot % 16], (k, v), strict=True):
            assert_close(stored.cpu(), given[token], torch.float16)
    assert kv.isnan().sum() == kv.numel() - 3 * 2 * 3 * head_dim
