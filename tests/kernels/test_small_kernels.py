"""Norms, rope, activations and products against plain formulas in fp64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pkvchat.kernels.activation import gated
from pkvchat.kernels.norm import add_rms_norm, rms_norm
from pkvchat.kernels.products.linear import Linear, LinearTypes
from pkvchat.kernels.products.packed import BITS, PackedLinear
from pkvchat.kernels.products.quant_formats import TYPES, dequantise, pack
from pkvchat.kernels.rope import apply_rope

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
MIXED = LinearTypes(F16, F16, BF16, few_limit=4)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def relative(found, expected):
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize(("dtype", "tolerance"), [(F32, 1e-6), (F16, 1e-3), (BF16, 8e-3)])
def test_rms_norm(dtype, tolerance):
    x, weight = torch.randn(5, 96).to(dtype) * 30, torch.rand(96)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    found = rms_norm(x, weight, 1e-5)
    assert found.dtype == dtype
    assert relative(found, expected) < tolerance


def test_rms_norm_of_zeros_is_zero():
    assert torch.equal(rms_norm(torch.zeros(2, 64), torch.ones(64), 1e-6), torch.zeros(2, 64))


def test_rms_norm_by_head():
    x, weight = torch.randn(3, 4, 64), torch.rand(64)
    assert torch.equal(rms_norm(x, weight, 1e-6)[1, 2], rms_norm(x[1, 2], weight, 1e-6))


def test_add_rms_norm_keeps_the_residuals_precision():
    x, residual, weight = torch.randn(3, 64).to(BF16), torch.randn(3, 64), torch.rand(64)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert (normed.dtype, total.dtype) == (BF16, F32)
    assert torch.equal(total, residual + x.float())
    assert torch.equal(normed, rms_norm(total, weight, 1e-5).to(BF16))


@pytest.mark.parametrize("rotary_dim", [64, 32])
def test_rope_turns_pairs(rotary_dim):
    x, half = torch.randn(5, 3, 64), rotary_dim // 2
    angle = torch.randn(5, half)
    found = apply_rope(x, angle.cos(), angle.sin())
    pairs = torch.complex(x[..., :half].double(), x[..., half:rotary_dim].double())
    turned = pairs * torch.polar(torch.ones(5, 1, half).double(), angle.double().unsqueeze(1))
    expected = torch.cat((turned.real, turned.imag, x[..., rotary_dim:].double()), -1)
    assert relative(found, expected) < 1e-6


def test_gated_activations():
    x = torch.randn(4, 20)
    gate, up = x.double().chunk(2, -1)
    assert relative(gated(x, "silu"), gate / (1 + (-gate).exp()) * up) < 1e-6
    inner = (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
    assert relative(gated(x, "gelu_tanh"), 0.5 * gate * (1 + inner.tanh()) * up) < 1e-6


@pytest.mark.parametrize("rows", [1, 4, 5, 40])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("types", "tolerance"), [(LinearTypes.uniform(F32), 1e-6), (MIXED, 5e-3)], ids=["f32", "mixed"]
)
def test_linear(types, tolerance, bias, rows):
    weight, added = torch.randn(48, 96), torch.randn(48) if bias else None
    x = torch.randn(rows, 96)
    found = Linear(weight, added, types=types)(x)
    assert found.dtype == F32
    expected = x.double() @ weight.double().T + (added.double() if bias else 0)
    assert relative(found, expected) < tolerance


def test_without_float16_nothing_overflows():
    types = MIXED.without_float16()
    assert F16 not in (types.weight, types.few_rows, types.many_rows)
    x = torch.full((1, 64), 1e5)
    assert Linear(torch.ones(8, 64), types=types)(x).isfinite().all()


def random_raw(name, rows, width):
    """Blocks of random codes with sane scales."""
    kind = TYPES[name]
    raw = torch.randint(0, 256, (rows, width // kind.block * kind.block_bytes), dtype=torch.uint8)
    blocks = raw.view(rows, -1, kind.block_bytes)
    halves = {"Q4_1": 2, "Q4_K": 2, "Q5_K": 2}.get(name, 1)
    scales = (torch.rand(*blocks.shape[:2], halves) * 0.02 + 0.01).half()
    blocks[..., : 2 * halves] = scales.view(torch.uint8)
    return raw


@pytest.mark.parametrize("names", [*((name, name) for name in BITS), ("Q4_K", "Q5_K")], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 20])
def test_packed_linear(names, rows):
    outs = (24, 17)  # not by the 16
    parts = [(name, random_raw(name, out, 512)) for name, out in zip(names, outs, strict=True)]
    bias, x = torch.randn(41), torch.randn(rows, 512)
    weight = torch.cat([dequantise(pack(*part)) for part in parts])
    linear = PackedLinear(parts, bias, types=MIXED)
    found = linear(x)
    assert found.dtype == F32
    assert relative(found, x.double() @ weight.double().T + bias.double()) < 6e-3


def test_without_a_dense_copy_all_rows_go_to_the_packed_weights():
    part, x = ("Q4_0", random_raw("Q4_0", 32, 64)), torch.randn(9, 64)
    lean = PackedLinear([part], types=replace(MIXED, dense=False))
    assert lean.nbytes() * 3 < PackedLinear([part], types=MIXED).nbytes() * 2
    assert relative(lean(x), x.double() @ dequantise(pack(*part)).double().T) < 6e-3


def test_packed_rows_do_not_depend_on_their_neighbours():
    linear = PackedLinear([("Q4_1", random_raw("Q4_1", 32, 64))], types=MIXED)
    x = torch.randn(4, 64)
    assert torch.equal(linear(x)[2:3], linear(x[2:3]))
