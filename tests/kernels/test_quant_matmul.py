"""GGUF blocks repacked, multiplied and written out, against gguf-py's dequantisation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from pkvchat.kernels.products import (
    quant_formats,
    quant_gemm_triton,
    quant_gemv_triton,
    quant_linear,
    quant_skinny_triton,
)
from pkvchat.kernels.products.quant_dequantise_triton import dequantise_rows, lookup_rows
from pkvchat.kernels.products.quant_formats import TYPES, dequantise, pack, stack
from pkvchat.kernels.products.quant_gemm_triton import GemmConfig, gemm
from pkvchat.kernels.products.quant_gemv_triton import GemvConfig, gemv
from pkvchat.kernels.products.quant_linear import GEMM_LIMIT, QuantLinear
from pkvchat.kernels.products.quant_skinny_triton import SKINNY_LIMIT, SkinnyConfig, skinny

HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def random_rows(name: str, rows: int, width: int, seed: int = 0) -> torch.Tensor:
    """Blocks of random bits but for the fp16 scales, which are finite and of either sign."""
    kind, rng = TYPES[name], np.random.default_rng(seed)
    raw = rng.integers(0, 256, (rows, width // kind.block, kind.block_bytes), dtype=np.uint8)
    for start in HALVES[name]:
        scale = rng.normal(0, 0.01, (*raw.shape[:2], 1)).astype(np.float16)
        raw[..., start : start + 2] = scale.view(np.uint8)
    return torch.from_numpy(raw.reshape(rows, -1))


def reference(name: str, raw: torch.Tensor) -> torch.Tensor:
    from gguf import quants
    from gguf.constants import GGMLQuantizationType

    return torch.from_numpy(quants.dequantize(raw.numpy(), GGMLQuantizationType[name]))


def error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """NaN where anything was left unwritten."""
    return float((out.cpu().double() - expected).norm() / expected.norm())


def rounded(device: torch.device) -> float:
    """The error of weights and scales in bfloat16, which the interpreter rounds towards zero."""
    return 4e-3 if device.type == "cuda" else 1e-2


@pytest.mark.parametrize("name", TYPES)
def test_repacked_blocks_keep_every_bit_and_byte(monkeypatch, name):
    raw = random_rows(name, 7, 1024)
    monkeypatch.setattr(quant_formats, "_SLICE_BYTES", 2 * raw.shape[1])
    planes = pack(name, raw)
    assert planes.nbytes() == raw.nbytes
    assert (planes.rows, planes.in_features) == (7, 1024)
    assert torch.equal(dequantise(planes), reference(name, raw))


def test_repacks_what_gguf_quantised():
    from gguf import quants
    from gguf.constants import GGMLQuantizationType

    weights = np.random.default_rng(1).normal(size=(5, 96)).astype(np.float32)
    for name in ("Q4_0", "Q4_1", "Q8_0"):
        raw = torch.from_numpy(quants.quantize(weights, GGMLQuantizationType[name]))
        assert torch.equal(dequantise(pack(name, raw)), reference(name, raw))


def test_stacked_matrices_are_one_above_the_other():
    one, two = (random_rows("Q5_K", rows, 512, seed=rows) for rows in (3, 4))
    both = stack([pack("Q5_K", one), pack("Q5_K", two)])
    assert torch.equal(dequantise(both), reference("Q5_K", torch.cat((one, two))))


def test_refuses_what_it_cannot_repack():
    with pytest.raises(ValueError, match=r"Q5_0 has no kernels; those with: Q4_0, .*Q6_K"):
        pack("Q5_0", torch.zeros(2, 22, dtype=torch.uint8))
    with pytest.raises(ValueError, match="20 bytes are not whole blocks of 18"):
        pack("Q4_0", torch.zeros(2, 20, dtype=torch.uint8))


@pytest.mark.parametrize(("num_x", "rows", "width"), [(1, 13, 768), (3, 8, 1024), (1, 4, 1280)])
@pytest.mark.parametrize("name", TYPES)
def test_a_few_rows(triton_device, name, num_x, rows, width):
    """Less than a step of the walk, one, and more; rows that fill the programs and that don't."""
    raw, x, bias = random_rows(name, rows, width), torch.randn(num_x, width), torch.randn(rows)
    whole = torch.full((num_x, rows + 3), float("nan"), device=triton_device)
    planes, x = pack(name, raw.to(triton_device)), x.half()
    config = GemvConfig(rows=4, warps=1)
    gemv(planes, x.to(triton_device), whole[:, 1:-2], bias.to(triton_device), config)
    expected = x.double() @ reference(name, raw).double().T + bias
    assert error(whole[:, 1:-2], expected) < 1e-6
    assert whole[:, [0, -2, -1]].isnan().all()


@pytest.mark.parametrize(
    ("num_rows", "config", "dtype"),
    [
        (2, GemmConfig(rows=32, x_rows=8, parts=1, warps=2), torch.float32),
        (5, GemmConfig(rows=64, x_rows=16, parts=2, warps=4), torch.float16),
        (21, GemmConfig(rows=32, x_rows=16, parts=3, warps=1), torch.float16),
        (7, GemmConfig(rows=32, x_rows=8, parts=2, warps=2), torch.bfloat16),
        (9, GemmConfig(rows=64, x_rows=16, parts=1, warps=4), torch.bfloat16),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", TYPES)
def test_several_rows(triton_device, name, num_rows, config, dtype):
    raw = random_rows(name, 37, 768)
    x, bias = torch.randn(num_rows, 768).to(dtype), torch.randn(37)
    whole = torch.full((num_rows, 40), float("nan"), device=triton_device)
    planes = pack(name, raw.to(triton_device))
    gemm(planes, x.to(triton_device), whole[:, 2:39], bias.to(triton_device), config)
    expected = x.double() @ reference(name, raw).double().T + bias
    limits = {torch.float32: 1e-6, torch.float16: 4e-4, torch.bfloat16: rounded(triton_device)}
    assert error(whole[:, 2:39], expected) < limits[dtype]
    assert whole[:, [0, 1, 39]].isnan().all()


@pytest.mark.parametrize(
    ("num_x", "rows", "config", "dtype"),
    [
        (2, 32, SkinnyConfig(rows=32, warps=1), torch.float16),
        (5, 37, SkinnyConfig(rows=16, warps=4), torch.float16),  # with a tail
        (3, 70, SkinnyConfig(rows=64, warps=2), torch.float16),
        (8, 37, SkinnyConfig(rows=16, warps=2), torch.bfloat16),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", TYPES)
def test_skinny(triton_device, name, num_x, rows, config, dtype):
    raw = random_rows(name, rows, 768)
    x, bias = torch.randn(num_x, 768).to(dtype), torch.randn(rows)
    whole = torch.full((num_x, rows + 3), float("nan"), device=triton_device)
    planes = pack(name, raw.to(triton_device))
    out = whole[:, 2:-1]
    skinny(planes, x.to(triton_device), out, bias.to(triton_device), config=config)
    expected = x.double() @ reference(name, raw).double().T + bias
    assert error(out, expected) < (4e-4 if dtype == torch.float16 else rounded(triton_device))
    assert whole[:, [0, 1, -1]].isnan().all()


@pytest.mark.parametrize("multiprocessors", [1, 28, 132])
@pytest.mark.parametrize(("name", "width"), [("Q4_1", 96), ("Q8_0", 576), ("Q6_K", 768)])
def test_chosen_configurations(triton_device, monkeypatch, multiprocessors, name, width):
    """Of matrices much smaller than those that the choice was made for."""
    for module in (quant_gemv_triton, quant_gemm_triton, quant_skinny_triton):
        monkeypatch.setattr(module, "multiprocessors", lambda device: multiprocessors)
    raw = random_rows(name, 70, width)
    linear = QuantLinear([(name, raw.to(triton_device))], width)
    weight = reference(name, raw).double()
    for num_rows, dtype, limit in (
        (1, torch.float32, 1e-6),
        (3, torch.float32, 1e-6),
        (SKINNY_LIMIT, torch.float16, 1e-3),
        (33, torch.float32, 1e-6),
    ):
        x = torch.randn(num_rows, width).to(dtype)
        assert error(linear(x.to(triton_device)), x.double() @ weight.T) < limit


@pytest.mark.parametrize("name", TYPES)
def test_writes_rows_out(triton_device, name):
    raw = random_rows(name, 37, 768)
    planes, expected = pack(name, raw.to(triton_device)), reference(name, raw)
    out = torch.full((20, 768), float("nan"), device=triton_device)
    dequantise_rows(planes, 17, out)
    assert torch.equal(out.cpu(), expected[17:])
    ids = torch.tensor([36, 0, 5, 5])
    out = torch.full((4, 768), float("nan"), dtype=torch.float16, device=triton_device)
    lookup_rows(planes, ids.to(triton_device), out)
    assert torch.equal(out.cpu(), expected[ids].half())


@pytest.mark.parametrize("num_rows", [0, 1, 3, GEMM_LIMIT + 1])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_stacks_mixed_types(triton_device, monkeypatch, num_rows, with_bias):
    monkeypatch.setattr(quant_linear, "SCRATCH_BYTES", 768 * 4 * 10)  # several slices
    raws = [("Q4_K", random_rows("Q4_K", 24, 768, 1)), ("Q4_K", random_rows("Q4_K", 8, 768, 2))]
    raws.append(("Q6_K", random_rows("Q6_K", 9, 768, 3)))
    bias = torch.randn(41) if with_bias else None
    parts = [(name, raw.to(triton_device)) for name, raw in raws]
    linear = QuantLinear(parts, 768, None if bias is None else bias.to(triton_device))
    assert len(linear.parts) == 2
    assert linear.nbytes() == sum(raw.nbytes for _, raw in raws) + (164 if with_bias else 0)
    x = torch.randn(num_rows, 768)
    out = linear(x.to(triton_device))
    weight = torch.cat([reference(name, raw) for name, raw in raws]).double()
    expected = x.double() @ weight.T + (0 if bias is None else bias)
    assert out.shape == (num_rows, 41)
    assert out.dtype == torch.float32
    if num_rows:
        assert error(out, expected) < 1e-6


@pytest.mark.parametrize("num_rows", [0, 1, 3, GEMM_LIMIT + 1])
@pytest.mark.parametrize("types", [("Q4_K",), ("Q6_K",), ("Q4_K", "Q6_K")], ids=str)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 4e-6), (torch.float16, 1e-3)])
def test_gated_product(triton_device, num_rows, types, dtype, limit):
    """In one kernel, by the sum over parts, or after the product."""
    raws = [random_rows(name, 26, 512, seed) for seed, name in enumerate(types)]
    parts = [(name, raw.to(triton_device)) for name, raw in zip(types, raws, strict=True)]
    bias, x = torch.randn(26 * len(types)), (torch.randn(num_rows, 512) / 8).to(dtype)
    linear = QuantLinear(parts, 512, bias.to(triton_device))
    out = linear.gated(x.to(triton_device), "silu")
    weight = [reference(name, raw) for name, raw in zip(types, raws, strict=True)]
    gates, ups = (x.double() @ torch.cat(weight).double().T + bias).chunk(2, -1)
    assert out.shape == (num_rows, 13 * len(types))
    if num_rows:
        assert error(out, F.silu(gates) * ups) < limit


def test_linear_is_the_same_every_time(triton_device):
    linear = QuantLinear([("Q4_K", random_rows("Q4_K", 64, 1024).to(triton_device))], 1024)
    x = torch.randn(4, 1024, device=triton_device).half()
    for rows in (1, 4):
        assert torch.equal(linear(x[:rows]), linear(x[:rows]))


def test_linear_as_an_embedding(triton_device):
    raw = random_rows("Q8_0", 50, 96)
    linear = QuantLinear([("Q8_0", raw.to(triton_device))], 96)
    ids = torch.tensor([[7, 0], [49, 0]], device=triton_device)
    rows = linear.rows(ids[:, 0], torch.float32)  # of a batch of sequences, say
    assert torch.equal(rows.cpu(), reference("Q8_0", raw)[[7, 49]])


def test_linear_refuses_another_width():
    with pytest.raises(ValueError, match="Q4_0 rows of 64 weights, not 96"):
        QuantLinear([("Q4_0", random_rows("Q4_0", 2, 64))], 96)
