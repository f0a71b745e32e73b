"""Steps through CUDA graphs give the text that they give without."""

from __future__ import annotations

import pytest
import torch

from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.attention.registry import why_unavailable
from pkvchat.models.config import ExpertConfig
from pkvchat.sampling import SamplingParams


@pytest.mark.gpu
def test_same_text_with_graphs_and_without(answers, gpu_model):
    model, strategies = gpu_model(torch.float32), ("split", "workqueue", "sdpa")
    eager, none = answers(model, strategies, graphs=False)
    captured, count = answers(model, strategies)
    assert none == 0
    assert count > 4
    assert captured == eager


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_same_text_from_quantised_kv(answers, gpu_model, kv_dtype):
    model, strategies = gpu_model(torch.float16), ("split", "workqueue")
    eager, _ = answers(model, strategies, capture=False, kv_dtype=kv_dtype)
    captured, count = answers(model, strategies, kv_dtype=kv_dtype)
    assert count > 2
    assert captured == eager


@pytest.mark.gpu
@pytest.mark.parametrize("quant", ["bf16", "Q8_0"])
def test_same_text_with_experts(answers, gpu_model, quant):
    experts = ExpertConfig(count=8, per_token=2, intermediate_size=256, normalise=True)
    model = gpu_model(torch.float32, quant, experts=experts)
    eager, none = answers(model, ("split", "sdpa"), capture=False)
    captured, count = answers(model, ("split", "sdpa"))
    assert none == 0
    assert count > 2
    assert captured == eager


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["flashinfer", "split", "workqueue"])
def test_same_text_in_float16(answers, gpu_model, name):
    """FlashInfer has no float32. Each against itself, since strategies round differently."""
    model = gpu_model(torch.float16)
    if why := why_unavailable(name, AttentionShape(8, 2, 64, 16, model.dtype, model.device)):
        pytest.skip(why)
    eager, none = answers(model, (name,), capture=False)
    captured, count = answers(model, (name,))
    assert none == 0
    assert count > 2
    assert captured == eager


@pytest.mark.gpu
@pytest.mark.parametrize("num_pages", [80, 30])
def test_same_text_a_step_ahead_of_the_known_tokens(answers, gpu_model, num_pages):
    """Greedy, penalised and drawn; with pages for all, and with too few, so that some wait."""
    sampling = (
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.3, seed=5),
        SamplingParams(temperature=0.0, repeat_penalty=1.5, repeat_last_n=9),
        SamplingParams(temperature=0.9, top_k=0, repeat_penalty=1.1, seed=6),
    )
    model = gpu_model(torch.float32)
    both = [
        answers(model, ("workqueue",), ahead=ahead, num_pages=num_pages, sampling=sampling)[0]
        for ahead in (False, True)
    ]
    assert both[0] == both[1]


@pytest.mark.gpu
def test_two_greedy_runs_give_the_same_text(answers, gpu_model):
    model = gpu_model(torch.bfloat16)
    assert answers(model, ("split", "workqueue")) == answers(model, ("split", "workqueue"))
