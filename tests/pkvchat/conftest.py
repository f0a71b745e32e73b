"""Small random Llamas for the engine's tests, on the CPU and on a GPU; the program as a process."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pkvchat.engine.engine import Engine
from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.policy.policy import Decision
from pkvchat.kernels.products.linear import LinearTypes
from pkvchat.models.causal_lm import CausalLM
from pkvchat.models.config import ModelConfig
from pkvchat.models.decoder import Decoder
from pkvchat.models.random_weights import SHAPES, RandomCheckpoint
from pkvchat.models.weights import WeightReader

CPU = torch.device("cpu")
CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=97,
    hidden_size=48,
    intermediate_size=80,
    num_layers=2,
    num_qo_heads=6,
    num_kv_heads=2,
    head_dim=8,
    context_length=256,
    rms_norm_eps=1e-5,
    tie_embeddings=True,
)
GPU_CONFIG = replace(
    SHAPES["llama-3-8b"],
    vocab_size=500,
    hidden_size=512,
    intermediate_size=768,
    num_layers=2,
    num_qo_heads=8,
    num_kv_heads=2,
    head_dim=64,
    context_length=4096,
    tie_embeddings=False,  # tied, a random model mostly repeats itself
)
SHAPE = AttentionShape(
    CONFIG.num_qo_heads, CONFIG.num_kv_heads, CONFIG.head_dim, 16, torch.float32, CPU
)


class LoudCheckpoint(RandomCheckpoint):
    """With weights so large that the next token depends on each of them and on all tokens before.

    Equal whatever order they are read in.
    """

    def parts(self, name: str, out: torch.Tensor) -> tuple[()]:
        seed = sum(name.encode())
        values = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed))
        out.copy_(values if out.dim() == 1 else values / out.shape[1] ** 0.5 * 2)
        return ()


@pytest.fixture(scope="session")
def model() -> CausalLM:
    reader = WeightReader(
        LoudCheckpoint(CONFIG, "bf16", CPU),
        CPU,
        torch.float32,
        LinearTypes.uniform(torch.float32),
        lambda stage, done, total: None,
    )
    return Decoder(CONFIG, reader)


class FixedPolicy:
    """One strategy in three splits whatever the batch; implements Policy."""

    def __init__(self, strategy: str) -> None:
        self.name, self.strategy = f"forced-{strategy}", strategy

    def choose(self, lengths: tuple[int, ...]) -> Decision:
        return Decision(self.strategy, 3, {self.strategy: 1.0}, f"{len(lengths)} rows")

    def observe(self, lengths: tuple[int, ...], decision: Decision, step_us: float) -> None:
        pass


@pytest.fixture
def make_engine(model: CausalLM) -> Callable[..., Engine]:
    """make_engine(num_pages=, strategy=, context=, and what else Engine takes by name)"""

    def make(
        num_pages: int = 64, strategy: str = "sdpa", context: int = 256, **options: Any
    ) -> Engine:
        return Engine(model, SHAPE, FixedPolicy(strategy), num_pages, context, **options)

    return make


@pytest.fixture(scope="session")
def gpu_model() -> Callable[..., Decoder]:
    """gpu_model(dtype, quant="bf16", loud=False, and what else of its shape is to differ)"""

    def make(
        dtype: torch.dtype, quant: str = "bf16", *, loud: bool = False, **changes: Any
    ) -> Decoder:
        config, device = replace(GPU_CONFIG, **changes), torch.device("cuda", 0)
        checkpoint = (LoudCheckpoint if loud else RandomCheckpoint)(config, quant, device)
        types = replace(LinearTypes.uniform(dtype), packed_bits=8)
        reader = WeightReader(checkpoint, device, dtype, types, lambda stage, done, total: None)
        return Decoder(config, reader)

    return make


@pytest.fixture
def tiny_shape(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModelConfig]:
    """tiny_shape(context_length=): have random weights come in a small shape, "tiny"."""

    def make(context_length: int = 512) -> ModelConfig:
        tiny = replace(
            SHAPES["llama-3-8b"],
            vocab_size=512,
            hidden_size=256,
            intermediate_size=512,
            num_layers=8,
            num_qo_heads=4,
            num_kv_heads=2,
            head_dim=64,
            context_length=context_length,
        )
        monkeypatch.setitem(SHAPES, "tiny", tiny)
        return tiny

    return make


# --- the program ----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all, so that the CPU is calibrated once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session", autouse=True)
def in_cache_home(cache_home: Path) -> Iterator[None]:
    """This process's own cache is there too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache_home))
        yield


@pytest.fixture
def cli_env(tmp_path: Path, cache_home: Path) -> dict[str, str]:
    """An environment whose user, at home in ``tmp_path``, has no files yet."""
    return {
        **os.environ,
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_CACHE_HOME": str(cache_home),
        "HF_HOME": str(tmp_path / "hub"),
        "OMP_NUM_THREADS": "1",  # the cores are shared with whatever else is tested
    }


@pytest.fixture
def run_cli(cli_env: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """run_cli(*args, stdin=b"") runs ``pkvchat ARGS`` without a terminal."""

    def run(*args: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pkvchat", *map(str, args)]
        done = subprocess.run(command, input=stdin, env=cli_env, capture_output=True, timeout=120)
        out, err = done.stdout.decode(), done.stderr.decode()
        return subprocess.CompletedProcess(command, done.returncode, out, err)

    return run


@pytest.fixture
def full_disk():
    """full_disk(): while entered, no file takes another byte, as on a disk with no room left."""

    @contextmanager
    def full():
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return full
