"""Experts: what each row chose, at once and one by one, against products in fp64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType

from pkvchat.kernels.products.gemv_triton import gemv as dense_gemv
from pkvchat.kernels.products.linear import LinearTypes
from pkvchat.kernels.products.quant_formats import TYPES, pack
from pkvchat.kernels.products.quant_gemv_triton import gemv
from pkvchat.kernels.products.routed import dense_experts, packed_experts, quantised_experts

COUNT, ROWS, WIDTH = 5, 6, 512
F32 = LinearTypes.uniform(torch.float32)


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(COUNT, ROWS, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def choice() -> torch.Tensor:
    return torch.tensor([[0, 4], [3, 0], [4, 1]])


def stored(weight: torch.Tensor, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Raw rows of all experts, and the weights they stand for. gguf-py quantises few types."""
    kind = GGMLQuantizationType[name]
    if name in ("Q4_0", "Q4_1", "Q8_0"):
        raw = quants.quantize(weight.flatten(0, 1).numpy(), kind)
    else:
        size = (COUNT * ROWS, WIDTH // 256, TYPES[name].block_bytes)
        random = torch.randint(0, 256, size, generator=torch.Generator().manual_seed(0))
        random[..., {"Q6_K": [209]}.get(name, [1, 3])] = 0x10  # small, finite scales
        raw = random.to(torch.uint8).flatten(1).numpy()
    meaning = torch.from_numpy(quants.dequantize(raw, kind)).view(weight.shape)
    return torch.from_numpy(raw), meaning


def check(
    chosen: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None],
    weight: torch.Tensor,
    choice: torch.Tensor,
    device: torch.device,
) -> None:
    """For the two shapes there are: one x for all that a row chose, and one for each."""
    for given in (choice, choice.view(-1, 1)):
        x = torch.randn(len(given), weight.shape[2])
        wide = torch.full((given.numel(), 2 * ROWS), torch.nan, device=device)
        chosen(x.to(device), given.to(device), wide[:, ROWS:])
        expected = torch.einsum("njrw,nw->njr", weight[given].double(), x.double()).flatten(0, 1)
        error = (wide[:, ROWS:].cpu() - expected).norm() / expected.norm()
        assert error < 1e-5
        assert wide[:, :ROWS].isnan().all()


@pytest.mark.parametrize("width", [WIDTH, 200])
def test_dense(weight, choice, triton_device, width):
    weight = weight[..., :width].contiguous()
    check(
        lambda x, chosen, out: dense_gemv(weight.to(triton_device), x, out, chosen=chosen),
        weight,
        choice,
        triton_device,
    )


@pytest.mark.parametrize("name", TYPES)
def test_quantised(weight, choice, triton_device, name):
    raw, meaning = stored(weight, name)
    planes = pack(name, raw.to(triton_device))
    check(
        lambda x, chosen, out: gemv(planes, x, out, chosen=chosen), meaning, choice, triton_device
    )


def test_one_by_one_on_a_cpu(weight, choice):
    raw, meaning = stored(weight, "Q8_0")
    x = torch.randn(4, WIDTH)
    for experts, close in (
        (dense_experts(weight, F32), 1e-6),
        (packed_experts("Q8_0", raw, ROWS, F32), 2e-2),
    ):
        expected = x @ (weight if close < 1e-3 else meaning)[2].T
        found = experts.products[2](x)
        assert (found - expected).norm() < close * expected.norm()
        with pytest.raises(ValueError, match="one by one"):
            experts.chosen(x[:3], choice, torch.empty(6, ROWS))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["", *TYPES])
def test_both_ways_agree_on_a_gpu(weight, choice, name):
    raw, meaning = stored(weight, name) if name else (weight, weight)
    experts = (
        quantised_experts(name, raw.cuda(), ROWS) if name else dense_experts(weight.cuda(), F32)
    )
    check(experts.chosen, meaning, choice, torch.device("cuda"))
    x = torch.randn(4, WIDTH).cuda()
    for product, each in zip(experts.products, meaning.double(), strict=True):
        expected = x.cpu().double() @ each.T
        assert (product(x).cpu() - expected).norm() < 1e-2 * expected.norm()
