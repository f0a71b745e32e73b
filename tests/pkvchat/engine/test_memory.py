from dataclasses import replace

import pytest
import torch

from pkvchat.engine.memory import free_memory, human, limit_memory, size_cache
from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.options import EngineOptions

CPU = torch.device("cpu")
SHAPE = AttentionShape(4, 2, 8, 16, torch.float32, CPU)
PER_PAGE = 3 * 2 * 2 * 16 * 8 * 4  # 3 layers, K and V, 2 heads


def test_an_asked_for_memory_is_used_whole() -> None:
    assert size_cache(3, SHAPE, 160, EngineOptions(kv_memory=21 * PER_PAGE + 5)) == (21, 160, "")


def test_a_small_memory_lowers_the_models_context_and_says_so() -> None:
    num_pages, context, note = size_cache(3, SHAPE, 160, EngineOptions(kv_memory=4 * PER_PAGE))
    assert (num_pages, context) == (4, 48)
    assert "holds 48 tokens of KV: the context is 48 instead of the model's 160" in note


def test_an_asked_for_context_that_does_not_fit_is_refused_with_numbers() -> None:
    with pytest.raises(ValueError, match="fewer than the 100 that -c needs") as error:
        size_cache(3, SHAPE, 160, EngineOptions(context=100, kv_memory=4 * PER_PAGE))
    assert f"--kv-memory {human(8 * PER_PAGE)}" in str(error.value)
    enough = EngineOptions(context=100, kv_memory=8 * PER_PAGE)
    assert size_cache(3, SHAPE, 160, enough)[:2] == (8, 100)


def test_no_memory_is_advised_that_the_machine_lacks() -> None:
    with pytest.raises(ValueError, match=r"that -c needs: lower -c$"):
        size_cache(3, SHAPE, 160, EngineOptions(context=1 << 60))


@pytest.mark.parametrize("memory", [1 << 50, 999_999_999_999_999 << 40])
def test_more_memory_than_there_is_is_refused(memory: int) -> None:
    with pytest.raises(ValueError, match=r"--kv-memory \S+ GiB is more than the .* has left"):
        size_cache(3, SHAPE, 160, EngineOptions(kv_memory=memory))


@pytest.mark.parametrize("memory", [0, 1, PER_PAGE, 2 * PER_PAGE - 1])
def test_no_room_for_one_page_is_refused(memory: int) -> None:
    with pytest.raises(ValueError, match="two pages of 16, one of them for scratch, need 12 KiB"):
        size_cache(3, SHAPE, 160, EngineOptions(kv_memory=memory))


def test_unasked_a_cpu_cache_holds_four_contexts() -> None:
    assert size_cache(3, SHAPE, 160, EngineOptions()) == (41, 160, "")
    assert size_cache(3, SHAPE, 160, EngineOptions(context=32)) == (9, 32, "")


def test_free_memory_is_plausible() -> None:
    assert 1 << 20 < free_memory(CPU) < 1 << 50


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (5, "5 bytes"),
        (1024, "1 KiB"),
        (1025, "1.1 KiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 60, "1073741824 GiB"),
    ],
)
def test_human(num_bytes: int, text: str) -> None:
    assert human(num_bytes) == text


def test_a_memory_limit_is_for_a_gpu() -> None:
    with pytest.raises(ValueError, match="--memory-limit is for a CUDA device, and this is cpu"):
        limit_memory(CPU, 1 << 30)


@pytest.mark.gpu
def test_a_memory_limit_is_what_is_free() -> None:
    device = torch.device("cuda")
    total = torch.cuda.get_device_properties(device).total_memory
    free = free_memory(device)
    limit = torch.cuda.memory_reserved(device) + (2 << 30)
    try:
        limit_memory(device, limit)
        held = torch.empty(1 << 28, dtype=torch.uint8, device=device)
        left = free_memory(device)
        assert left <= limit - held.nbytes
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(left + (4 << 20), dtype=torch.uint8, device=device)
        with pytest.raises(ValueError, match=r"that -c needs: lower -c$"):
            size_cache(32, replace(SHAPE, device=device), 1 << 20, EngineOptions(context=1 << 19))
        with pytest.raises(ValueError, match="--kv-memory 4 GiB is more than the"):
            size_cache(3, replace(SHAPE, device=device), 160, EngineOptions(kv_memory=4 << 30))
        with pytest.raises(ValueError, match=r"the device has .*; give no more than that"):
            limit_memory(device, total + 1)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert free_memory(device) <= free
