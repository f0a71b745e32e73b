"""fp8 and int8 KV with a scale for each token and head: writes, reads, pages, every strategy."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pkvchat.kernels.attention.batch import QUANT_MAX, AttentionShape, LayerSpec, PrefillChunk
from pkvchat.kernels.attention.kv import (
    allocate_kv,
    copy_pages,
    dequantise,
    kv_rows,
    page_bytes,
    quantise,
    tokens_per_page,
    write_kv,
)
from pkvchat.kernels.attention.prefill import PrefillAttention
from pkvchat.kernels.attention.registry import create_strategy

CPU = torch.device("cpu")
KV_DTYPES = tuple(QUANT_MAX)
# Of a value: half a step of int8, and half the last of fp8's three bits of mantissa.
STEP = {torch.int8: 0.5 / 127, torch.float8_e4m3fn: 2**-4}


def shape_of(kv_dtype, group=4, heads=2, dim=64, page=16, dtype=torch.float32, device=CPU):
    return AttentionShape(group * heads, heads, dim, page, dtype, device, kv_dtype)


def contents(kv_layer, shape):
    """[num_pages, 2, num_kv_heads, page_size, head_dim] float32, on the CPU."""
    return dequantise(kv_layer.cpu().flatten(3), shape.page_size, shape.head_dim, torch.float32)


kv_dtypes = pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=str)


@kv_dtypes
@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 5),
    dim=st.sampled_from([8, 64, 80]),
    magnitude=st.sampled_from([0.0, 1e-6, 1.0, 3e4]),
    seed=st.integers(0, 1000),
)
def test_quantised_values_are_within_half_a_step(kv_dtype, rows, dim, magnitude, seed):
    x = torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed)) * magnitude
    values, scales = quantise(x, kv_dtype)
    back = values.float() * scales[:, None]
    largest = x.abs().amax(-1, keepdim=True)
    step = largest if kv_dtype == torch.int8 else x.abs() + largest * 2**-9
    assert ((back - x).abs() <= STEP[kv_dtype] * step * 1.001 + 1e-12).all()


@kv_dtypes
@pytest.mark.parametrize("dim", [8, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("page", [16, 32, 64])
def test_pages_hold_their_tokens_and_scales(kv_dtype, dim, page):
    shape = shape_of(kv_dtype, dim=dim, page=page)
    (layer,) = allocate_kv(1, 3, shape)
    assert tokens_per_page(layer) == page
    assert layer.nbytes == 3 * page_bytes(1, shape)
    assert shape.page_rows * dim >= page * (dim + 4) > (shape.page_rows - 1) * dim
    plain = dataclasses.replace(shape, dtype=torch.float16, kv_dtype=torch.float16)
    if dim >= 64:
        assert page_bytes(1, shape) < 0.55 * page_bytes(1, plain)


@kv_dtypes
def test_write_touches_only_its_slots(kv_dtype):
    shape = shape_of(kv_dtype, page=32)
    (layer,) = allocate_kv(1, 4, shape)
    layer.view(torch.int8).fill_(-1)  # NaN as float8, and as a scale
    slots = torch.tensor([2 * 32 + 31, 1 * 32 + 0, 3 * 32 + 7])
    k, v = torch.randn(2, 3, 2, 64)
    before = layer.clone()
    write_kv(layer, kv_rows(slots, layer), k, v)
    found = contents(layer, shape)
    for i, slot in enumerate(slots.tolist()):
        page, offset = divmod(slot, 32)
        for part, x in enumerate((k, v)):
            error = (found[page, part, :, offset] - x[i]).abs().amax()
            assert error <= STEP[kv_dtype] * x[i].abs().amax()
    assert found.isnan().sum() == found.numel() - 3 * 2 * 2 * 64
    changed = layer.view(torch.int8) != before.view(torch.int8)
    assert changed.sum() <= 3 * 2 * 2 * (64 + 4)


@kv_dtypes
def test_copy_pages_copies_scales_too(kv_dtype):
    layers = allocate_kv(2, 6, shape_of(kv_dtype))
    for layer in layers:
        layer.view(torch.int8).random_()
    before = [layer.view(torch.int8).clone() for layer in layers]
    copy_pages(layers, [1, 4], [5, 2])
    for old, new in zip(before, layers, strict=True):
        assert torch.equal(new.view(torch.int8)[[5, 2]], old[[1, 4]])
        assert torch.equal(new.view(torch.int8)[[0, 1, 3, 4]], old[[0, 1, 3, 4]])


SPECS = [
    LayerSpec(0.125),
    LayerSpec(0.125, window=40),
    LayerSpec(0.125, window=17, softcap=30.0),
    LayerSpec(0.125, window=40, sinks=torch.linspace(-3, 5, 8)),
]


@kv_dtypes
@pytest.mark.parametrize("name", ["sdpa", "split", "workqueue"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strategies_on_cpu(paged_problem, kv_dtype, name, dtype):
    problem = paged_problem(shape_of(kv_dtype, dtype=dtype), (1, 100, 32, 16, 65))
    for spec in SPECS:
        out = problem.run(create_strategy(name, problem.shape), spec, 3)
        tolerance = 1e-5 if dtype == torch.float32 else 1.6e-2
        assert (out.double() - problem.expected(spec)).abs().max() < tolerance


@kv_dtypes
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.window}-{spec.softcap}")
def test_prefill(paged_problem, kv_dtype, spec):
    """The last token of a chunk sees what a decode step would."""
    problem = paged_problem(shape_of(kv_dtype), (90,))
    q = torch.randn(30, 8, 64)
    problem.q = q[-1:]
    chunk = PrefillChunk(problem.batch.block_table[0], 90, 30)
    out = torch.empty_like(q)
    PrefillAttention(chunk).run(q, problem.kv_layer, out, spec)
    assert (out[-1:].double() - problem.expected(spec)).abs().max() < 1e-5


# --- Triton: in the interpreter here, compiled where a GPU is -------------------------------------


def triton_strategies(shape):
    """With tiles and shares so small that short rows exercise all of it, and poisoned states."""
    pytest.importorskip("triton")
    from pkvchat.kernels.attention.split_triton import SplitTriton
    from pkvchat.kernels.attention.tile_config import tile_config
    from pkvchat.kernels.attention.workqueue_triton import WorkqueueTriton

    tile = 32 if shape.device.type == "cpu" else 64
    config = dataclasses.replace(tile_config(shape), tile=tile, num_programs=5, min_share=1)
    config = dataclasses.replace(config, unit=min(shape.page_size, config.tile))
    for cls in (SplitTriton, WorkqueueTriton):
        strategy = cls(shape, config)
        for states in strategy._states:
            states.fill_(float("nan"))
        yield strategy


@kv_dtypes
@pytest.mark.parametrize(
    ("group", "dim", "page", "dtype"),
    [
        (4, 64, 16, torch.float16),
        (7, 80, 32, torch.float32),
        pytest.param(3, 96, 16, torch.bfloat16, marks=pytest.mark.gpu),
        pytest.param(1, 128, 64, torch.float16, marks=pytest.mark.gpu),
        pytest.param(16, 256, 32, torch.bfloat16, marks=pytest.mark.gpu),
    ],
)
def test_triton_strategies(paged_problem, triton_device, kv_dtype, group, dim, page, dtype):
    heads = 1
    shape = shape_of(kv_dtype, group, heads, dim, page, dtype, triton_device)
    problem = paged_problem(shape, (1, 70, 0, 16, 33))
    sinks = torch.linspace(-3, 5, heads * group, device=triton_device)
    for spec in (LayerSpec(dim**-0.5), LayerSpec(dim**-0.5, 40, 30.0, sinks)):
        for strategy in triton_strategies(shape):
            error = (problem.run(strategy, spec).cpu().double() - problem.expected(spec)).abs()
            assert error.max() < (1.6e-2 if dtype == torch.bfloat16 else 2e-3)


@kv_dtypes
@pytest.mark.parametrize("magnitude", [1e-7, 1e4])
def test_triton_takes_values_far_from_one(paged_problem, triton_device, kv_dtype, magnitude):
    """Weights are multiplied as float16: V's scales may not make them underflow or overflow."""
    shape = shape_of(kv_dtype, device=triton_device)
    problem = paged_problem(shape, (100, 3))
    scales = problem.kv_layer.view(torch.float32).flatten(3)[..., 256:272]
    scales[:, 1] *= magnitude
    problem.q *= 3e4  # beyond float16, as are the scores
    spec = LayerSpec(0.125 / 3e4, sinks=torch.full((8,), 12.0, device=triton_device))
    for strategy in triton_strategies(shape):
        error = (problem.run(strategy, spec).cpu().double() - problem.expected(spec)).abs().max()
        assert error < 2e-3 * magnitude


@pytest.mark.parametrize(
    "kv_dtype",
    # Triton's interpreter loses the carry where a float8's rounding needs one.
    [torch.int8, pytest.param(torch.float8_e4m3fn, marks=pytest.mark.gpu)],
    ids=str,
)
@pytest.mark.parametrize(("dim", "page"), [(64, 16), (80, 32)])
def test_triton_writes_as_torch_does(triton_device, kv_dtype, dim, page):
    pytest.importorskip("triton")
    from pkvchat.kernels.attention.kv_triton import write_kv_triton
    from pkvchat.kernels.attention.qkv_triton import store_qkv_triton

    shape = shape_of(kv_dtype, dim=dim, page=page)
    ours, torchs = (allocate_kv(1, 4, shape)[0] for _ in range(2))
    for layer in (ours, torchs):
        layer.view(torch.int8).zero_()
    ours = ours.to(triton_device)
    qkv = torch.randn(3, 8, dim)
    qkv[1] = 0
    slots = torch.tensor([17, 63, 5])
    write_kv(torchs, kv_rows(slots, torchs), qkv[:, 4:6], qkv[:, 6:])
    moved = qkv.to(triton_device)
    rows = kv_rows(slots.to(triton_device), ours)
    write_kv_triton(ours, rows, moved[:, 4:6], moved[:, 6:])
    found, expected = contents(ours, shape), contents(torchs, shape)
    # A tie, or a quotient a bit apart, may round to the neighbour.
    assert ((found - expected).abs() <= 2.1 * STEP[kv_dtype] * expected.abs().amax()).all()
    apart = (found - expected).abs() > 1e-5 * expected.abs()  # scales may differ in the last bit
    assert apart.sum() <= 0.01 * (expected != 0).sum()
    fused = torch.zeros_like(ours, dtype=torch.int8).view(kv_dtype)
    assert torch.equal(store_qkv_triton(moved, None, None, fused, rows), moved[:, :4])
    assert torch.equal(fused.view(torch.int8), ours.view(torch.int8))
