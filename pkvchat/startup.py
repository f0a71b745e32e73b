"""From options to a running engine: device, types, weights, KV cache, calibration, policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from pkvchat.kernels.batch import AttentionShape
from pkvchat.kernels.calibration import Calibrator, DeviceTypes
from pkvchat.kernels.policy import Policy, create_policy, policy_names
from pkvchat.kernels.registry import STRATEGIES, why_unavailable
from pkvchat.models.causal_lm import CausalLM
from pkvchat.models.loader import LoadedModel, load_model

from .engine import Engine
from .memory import free_memory, size_cache
from .messages import Ready
from .options import EngineOptions

Progress = Callable[[str, int, int], None]  # stage, done, total (0 where unknown)

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
PAGE_SIZES = (16, 32, 64)


@dataclass(frozen=True)
class Built:
    """An engine around a model. strategies: each with why it cannot run here, "" if it can.

    make_policy: a policy by name, for this model on this device. note: "" or a line about a context
    that had to be smaller.
    """

    engine: Engine
    strategies: dict[str, str]
    make_policy: Callable[[str], Policy]
    note: str


@dataclass(frozen=True)
class Started:
    """make_policy: see Built."""

    engine: Engine
    loaded: LoadedModel
    ready: Ready
    make_policy: Callable[[str], Policy]


def start_engine(options: EngineOptions, progress: Progress, *, fresh: bool = False) -> Started:
    """fresh: measure the device even where there is a record of it.

    Raises ModelError, StrategyUnavailable or ValueError, each one line for a person.
    """
    device = prepare(options)
    calibrator = Calibrator(device, progress, fresh=fresh)

    @cache  # asked for when the model is found: a wrong name is told before anything is measured
    def types() -> DeviceTypes:
        dtype = DTYPES.get(options.dtype)
        return DeviceTypes.uniform(dtype) if dtype else calibrator.types()

    loaded = load_model(
        options.model,
        device=device,
        dtype=DTYPES.get(options.dtype),
        linear_types=lambda: types().linear,
        context=options.context,
        memory=free_memory(device),
        progress=progress,
    )
    built = build_engine(loaded.model, types().kv, options, calibrator)
    # On a CPU nobody misses what needs a GPU.
    declined = [why for why in built.strategies.values() if why] if device.type == "cuda" else []
    ready = Ready(
        model=loaded.name,
        device=device_name(device),
        dtype=dtype_name(types(), loaded.packed),
        context=built.engine.context,
        pages_total=built.engine.pool.capacity,
        page_size=options.page_size,
        policy=options.policy,
        strategies=built.strategies,
        notes=(
            *loaded.notes,
            *([built.note] if built.note else []),
            *declined,
            *calibrator.notes,
        ),
        template=loaded.template.source,
    )
    return Started(built.engine, loaded, ready, built.make_policy)


def prepare(options: EngineOptions) -> torch.device:
    """The device, after what can be checked and set before a model is there. Raises ValueError."""
    check_options(options)
    device = pick_device(options.device)
    if options.threads:
        torch.set_num_threads(options.threads)
    return device


def build_engine(
    model: CausalLM, kv_dtype: torch.dtype, options: EngineOptions, calibrator: Calibrator
) -> Built:
    """Size the KV cache, calibrate, choose the policy. Raises StrategyUnavailable or ValueError."""
    config = model.config
    shape = AttentionShape(
        config.num_qo_heads,
        config.num_kv_heads,
        config.head_dim,
        options.page_size,
        kv_dtype,
        model.device,
    )
    num_pages, context, note = size_cache(
        config.num_layers, shape, config.context_length, options.context, options.kv_memory
    )
    strategies = {name: why_unavailable(name, shape) for name in STRATEGIES}
    available = [name for name, why in strategies.items() if not why]
    calibration = calibrator.costs(shape, available)

    def make_policy(name: str) -> Policy:
        return create_policy(name, shape, calibration, available, config.num_layers)

    engine = Engine(model, shape, make_policy(options.policy), num_pages, context)
    return Built(engine, strategies, make_policy, note)


def check_options(options: EngineOptions) -> None:
    """What can be known to be wrong before anything is loaded. Raises ValueError."""
    if options.policy not in policy_names():
        raise ValueError(f"unknown policy {options.policy!r}: one of {', '.join(policy_names())}")
    if options.dtype != "auto" and options.dtype not in DTYPES:
        raise ValueError(f"unknown dtype {options.dtype!r}: auto, {', '.join(DTYPES)}")
    if options.page_size not in PAGE_SIZES:
        sizes = ", ".join(str(size) for size in PAGE_SIZES)
        raise ValueError(f"page size {options.page_size} is not one of {sizes}")


def pick_device(name: str) -> torch.device:
    """Raises ValueError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}: auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"unknown device {name!r}: auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device {name!r}: torch {torch.__version__} sees no CUDA device")
        if (device.index or 0) >= torch.cuda.device_count():
            raise ValueError(f"device {name!r}: there are {torch.cuda.device_count()} CUDA devices")
    return device


def device_name(device: torch.device) -> str:
    """For a person: "cpu, 2 threads", "NVIDIA H200"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu, {torch.get_num_threads()} threads"


def dtype_name(types: DeviceTypes, packed: Sequence[str]) -> str:
    """For a person: "bf16", or "Q4_1 weights, f16 KV" where they differ. packed: quant types."""
    short = {dtype: name for name, dtype in DTYPES.items()}
    weight, kv = "/".join(packed) or short[types.linear.weight], short[types.kv]
    return weight if weight == kv else f"{weight} weights, {kv} KV"
