"""What becomes of an engine where a device is short of memory."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from pkvchat.bench import Case, RandomWeights, run
from pkvchat.engine.attention_kernels import AttentionKernels
from pkvchat.errors import ChatError, startup_errors
from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.models.causal_lm import CausalLM
from pkvchat.models.config import ModelConfig
from pkvchat.options import EngineOptions
from pkvchat.startup import smaller_cache

SHAPE = AttentionShape(4, 2, 64, 16, torch.float16, torch.device("cpu"))


def test_a_cache_that_cannot_be_allocated_is_tried_smaller_with_a_line() -> None:
    num_pages, context, note = smaller_cache(801, 12_800, SHAPE, EngineOptions(), "no memory")
    assert (num_pages, context) == (700, 699 * 16)
    assert note.endswith("the KV cache holds 11184 tokens, and the context is 11184")
    # A context that still fits stays.
    assert smaller_cache(801, 500, SHAPE, EngineOptions(context=500), "no memory")[1] == 500


@pytest.mark.parametrize(("pages", "context"), [(801, 12_000), (2, 0)])
def test_a_cache_too_small_for_what_was_asked_is_refused(pages: int, context: int) -> None:
    with pytest.raises(ValueError, match=r"cannot be allocated \(no memory\): lower -c or"):
        smaller_cache(pages, 12_800, SHAPE, EngineOptions(context=context), "no memory")


def test_a_cpu_needs_no_triton() -> None:
    code = "import sys; sys.modules['triton'] = None; import pkvchat.startup"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_kernels_that_cannot_run_here_say_why(model: CausalLM) -> None:
    kernels = AttentionKernels.create(model, SHAPE, lambda stage, done, total: None)
    assert list(kernels.strategies) == ["split", "workqueue", "sdpa"]
    assert kernels.prefill is None
    assert "needs a CUDA device" in kernels.declined["flashinfer"]
    assert kernels.strategy("split", SHAPE) is kernels.strategies["split"]


@pytest.mark.gpu
def test_an_engine_keeps_within_a_memory_limit(
    tiny_shape: Callable[..., ModelConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_shape(context_length=1 << 20)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    limit, weights = torch.cuda.memory_reserved() + (2 << 30), RandomWeights("tiny", "Q4_K_M")
    try:
        options = EngineOptions(device="cuda", memory_limit=limit)
        cases = [Case(3000, 0, 50_000), Case(0, 20, 50_000)]
        assert run(options, cases, [2], ["adaptive"], 1, "json", weights) == 0
        rows = json.loads(capsys.readouterr().out)
        assert all(row["avg_ts"] > 0 for row in rows)
        assert torch.cuda.max_memory_reserved() <= limit
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("can't start new thread"),
    ],
)
def test_a_machine_without_memory_is_told_in_one_line(error: Exception) -> None:
    with pytest.raises(ChatError, match="too little memory left"), startup_errors():
        raise error


def test_other_errors_at_the_start_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="a fault"), startup_errors():
        raise RuntimeError("a fault")
