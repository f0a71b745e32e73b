"""What an engine does before it is ready, so that no answer waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pkvchat.bench import RandomWeights, start
from pkvchat.models.config import ModelConfig
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["adaptive", "forced-split", "forced-workqueue"])
def test_no_answer_waits_for_a_compiler(
    tiny_shape: Callable[..., ModelConfig], monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """Prompts of any length, beside any number of answers."""
    triton = pytest.importorskip("triton")
    tiny_shape(context_length=2048)
    options = EngineOptions(device="cuda", policy=policy, kv_memory=256 << 20)
    engine = start(options, RandomWeights("tiny", "Q4_K_M"), lambda stage, done, total: None).engine
    compiled: list[str] = []

    def listen(*, src: Any, **_: object) -> None:
        compiled.append(src.name)

    monkeypatch.setattr(triton.knobs.compilation, "listener", listen)
    for chat in range(33):
        params = SamplingParams(temperature=0.0, max_tokens=120 - 3 * chat)
        engine.submit(f"{chat}", [chat + 3 * i % 500 for i in range(1 + 43 * chat)], params)
        for _ in range(2):
            engine.step()
    while not engine.idle:
        engine.step()
    assert compiled == []
