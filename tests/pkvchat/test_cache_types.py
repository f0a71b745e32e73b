"""The KV cache's type, from the flags to the pages."""

from __future__ import annotations

import pytest
import torch

from pkvchat.kernels.policy.calibration import Calibrator
from pkvchat.kernels.policy.records import Store
from pkvchat.options import CACHE_TYPES, EngineOptions
from pkvchat.sampling import SamplingParams
from pkvchat.settings import RULES
from pkvchat.startup import QUANTISED, TORCH_DTYPES, build_engine, check_options, describe_types

CPU = torch.device("cpu")


def options_for(name):
    return EngineOptions(
        policy="forced-split", kv_memory=1 << 20, cache_type_k=name, cache_type_v=name
    )


@pytest.fixture(scope="module")
def calibrator(tmp_path_factory):
    return Calibrator(CPU, store=Store(tmp_path_factory.mktemp("records")))


@pytest.mark.parametrize("name", CACHE_TYPES)
def test_every_type_answers_from_pages_of_its_size(model, calibrator, name):
    engine = build_engine(model, torch.float32, options_for(name), calibrator).engine
    kv_dtype = {**TORCH_DTYPES, **QUANTISED, "auto": torch.float32}[name]
    assert {layer.dtype for layer in engine.runner.kv_layers} == {kv_dtype}
    used = sum(layer.nbytes for layer in engine.runner.kv_layers)
    page = used // (engine.pool.capacity + 1)
    assert (1 << 20) - page < used <= 1 << 20
    engine.submit("chat", list(range(40)), SamplingParams(temperature=0, max_tokens=5))
    tokens = []
    while not engine.idle:
        tokens += [token.token_id for token in engine.step().tokens]
    assert len(tokens) == 5


def test_quantised_pages_are_smaller(model, calibrator):
    counts = {
        name: build_engine(model, torch.float32, options_for(name), calibrator).engine.pool.capacity
        for name in ("f32", "f16", "q8_0")
    }
    # Of this model's heads of 8 dimensions, a scale of 4 bytes is a third.
    assert counts["f16"] > 1.9 * counts["f32"]
    assert counts["q8_0"] > 1.3 * counts["f16"]


def test_k_and_v_are_of_one_type():
    with pytest.raises(ValueError, match=r"-ctk q8_0 and -ctv f16: .* give both the same type"):
        check_options(EngineOptions(cache_type_k="q8_0", cache_type_v="f16"))
    with pytest.raises(ValueError, match="unknown KV cache type 'q4_0': one of auto, f32,"):
        check_options(EngineOptions(cache_type_k="q4_0", cache_type_v="q4_0"))


def test_one_that_is_left_to_itself_follows_the_other():
    assert EngineOptions(cache_type_k="q8_0").cache_type == "q8_0"
    assert EngineOptions(cache_type_v="q8_0").cache_type == "q8_0"
    assert EngineOptions().cache_type == "auto"


def test_flags(run_cli):
    done = run_cli("-ctk", "q8_0", "-ctv", "f16", "-p", "Hello")
    assert done.returncode == 2
    assert "-ctk q8_0 and -ctv f16" in done.stderr
    done = run_cli("-ctk", "q4_0", "-p", "Hello")
    assert done.returncode == 2
    assert "one of auto, f32, f16, bf16, fp8, q8_0" in done.stderr


@pytest.mark.parametrize(("name", "kept"), [("fp16", "f16"), ("int8", "q8_0"), ("fp8", "fp8")])
def test_torchs_names_are_taken_too(name, kept):
    assert RULES["cache_type_k"].parse(name) == kept
    assert RULES["cache_type_v"].check(name) == kept


def test_type_as_shown():
    assert describe_types(torch.bfloat16, (), torch.bfloat16) == "bf16"
    assert describe_types(torch.float16, ("Q4_1",), torch.int8) == "Q4_1 weights, q8_0 KV"
    assert describe_types(torch.bfloat16, (), torch.float8_e4m3fn) == "bf16 weights, fp8 KV"
