"""From options to a running engine: device, types, weights, KV cache, calibration, policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch

from pkvchat.kernels.attention.batch import QUANT_MAX, AttentionShape
from pkvchat.kernels.attention.registry import STRATEGIES
from pkvchat.kernels.policy.calibration import Calibrator, DeviceTypes
from pkvchat.kernels.policy.cost import CostModel
from pkvchat.kernels.policy.policy import Policy, check_policy, create_policy
from pkvchat.kernels.policy.surcharge import StepTimes
from pkvchat.kernels.progress import Progress
from pkvchat.models.causal_lm import CausalLM
from pkvchat.models.loader import LoadedModel, load_model

from .counted import counted
from .engine.attention_kernels import AttentionKernels
from .engine.engine import PREFILL_CHUNK, Engine
from .engine.memory import free_memory, human, largest_context, limit_memory, size_cache
from .engine.workspace import Workspace
from .messages import Ready
from .options import CACHE_TYPES, DTYPES, PAGE_SIZES, EngineOptions
from .step_bench import StepBench

TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
QUANTISED = {"fp8": torch.float8_e4m3fn, "q8_0": torch.int8}


@dataclass(frozen=True)
class Built:
    """An engine around a model. strategies: each with why it cannot run here, "" if it can.

    make_policy: a policy by name, for this model on this device. note: "" or a line about a context
    that had to be smaller. room: tokens of the longest context that there was memory for.
    """

    engine: Engine
    strategies: dict[str, str]
    make_policy: Callable[[str], Policy]
    note: str
    room: int


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
        dtype = TORCH_DTYPES.get(options.dtype)
        return DeviceTypes.uniform(dtype) if dtype else calibrator.types()

    loaded = load_model(
        options.model,
        device=device,
        dtype=TORCH_DTYPES.get(options.dtype),
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
        device=describe_device(device),
        dtype=describe_types(
            types().linear.weight, loaded.packed, built.engine.runner.shape.kv_dtype
        ),
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
        model_context=loaded.model.config.context_length,
        memory_context=built.room,
    )
    return Started(built.engine, loaded, ready, built.make_policy)


def prepare(options: EngineOptions) -> torch.device:
    """The device, after what can be checked and set before a model is there.

    Raises what check_options raises.
    """
    check_options(options)
    device = pick_device(options.device)
    if options.threads:
        torch.set_num_threads(options.threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if options.memory_limit is not None:
        limit_memory(device, options.memory_limit)
    return device


def build_engine(
    model: CausalLM, kv_dtype: torch.dtype, options: EngineOptions, calibrator: Calibrator
) -> Built:
    """Calibrate, size the KV cache, choose the policy. Raises StrategyUnavailable or ValueError."""
    config = model.config
    dtype, kv_dtype = cache_dtypes(options, kv_dtype)
    shape = AttentionShape(
        config.num_qo_heads,
        config.num_kv_heads,
        config.head_dim,
        options.page_size,
        dtype,
        model.device,
        kv_dtype,
    )
    kernels = AttentionKernels.create(model, shape, calibrator.progress)
    available = list(kernels.strategies)
    calibration = calibrator.costs(shape, available)
    chunk, workspace = measure_workspace(model, shape, kernels, options, calibrator.progress)
    room = largest_context(config.num_layers, shape, options.kv_memory, workspace)
    windows = [spec.window for spec in model.layer_specs if spec.window]
    steps: list[StepTimes] = []

    def make_policy(name: str) -> Policy:
        layers = config.num_layers
        return create_policy(name, shape, calibration, available, layers, windows, steps)

    policy = make_policy(options.policy)
    engine, note = allocate_engine(model, shape, policy, kernels, options, chunk, workspace)
    costs = CostModel(shape, calibration.workers, calibration.costs, config.num_layers, windows)
    steps += time_steps(engine, kernels, costs, calibrator)
    if steps:
        engine.set_policy(make_policy(options.policy))
    strategies = dict.fromkeys(STRATEGIES, "") | kernels.declined
    return Built(engine, strategies, make_policy, note, room)


def allocate_engine(
    model: CausalLM,
    shape: AttentionShape,
    policy: Policy,
    kernels: AttentionKernels,
    options: EngineOptions,
    chunk: int,
    workspace: int,
) -> tuple[Engine, str]:
    """An engine with the KV cache that there is memory for, and a note if its context is smaller.

    chunk, workspace: see measure_workspace. Raises ValueError where too little is left.
    """
    config = model.config
    num_pages, context, note = size_cache(
        config.num_layers, shape, config.context_length, options, workspace
    )
    asked_by = options.context_flag if options.context else ""
    while True:
        try:
            limited_by = "--kv-memory" if note else asked_by
            engine = Engine(
                model,
                shape,
                policy,
                num_pages,
                context,
                limited_by=limited_by,
                max_chunk=chunk,
                kernels=kernels,
            )
            return engine, note
        except torch.OutOfMemoryError as error:  # others use the device, too
            why = str(error).splitlines()[0]
        num_pages, context, note = smaller_cache(num_pages, context, shape, options, why)


def time_steps(
    engine: Engine, kernels: AttentionKernels, costs: CostModel, calibrator: Calibrator
) -> list[StepTimes]:
    """Whole steps of the engine's model, or the record of them; none on a CPU."""
    runner, strategies = engine.runner, kernels.strategies
    if runner.graphs is None:
        return []
    bench = StepBench(runner, strategies, costs, engine.pool.capacity, engine.context)
    config = runner.model.config
    nbytes = runner.model.step_nbytes()
    return calibrator.steps(
        runner.shape,
        f"{config.architecture}, {config.num_layers} layers, {nbytes} bytes",
        bench.strategies,
        partial(bench.times, calibrator.progress, thorough=calibrator.fresh),
    )


def measure_workspace(
    model: CausalLM,
    shape: AttentionShape,
    kernels: AttentionKernels,
    options: EngineOptions,
    progress: Progress,
) -> tuple[int, int]:
    """How many prompt tokens a step reads at most, and the bytes that it takes beside the KV.

    Raises ValueError where there is not even room for a small step.
    """
    if shape.device.type != "cuda":
        return PREFILL_CHUNK, 0
    progress("the model's kernels (the first start compiles them)", 0, 0)
    free = free_memory(shape.device)
    try:
        context = options.context or model.config.context_length
        workspace = Workspace(model, shape, kernels, context)
        workspace.compile()
        chunk, nbytes = workspace.choose_chunk(free)
        return chunk, max(nbytes, *map(workspace.decode, kernels.strategies.values()))
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"{human(free)} of the device's memory is left after the model, too little to read a "
            f"prompt: take a smaller model or quantisation, or lower {options.context_flag}"
        ) from error


def smaller_cache(
    num_pages: int, context: int, shape: AttentionShape, options: EngineOptions, why: str
) -> tuple[int, int, str]:
    """What to try instead of a KV cache that could not be allocated: see memory.size_cache."""
    torch.cuda.empty_cache()
    num_pages = num_pages * 7 // 8
    fits = (num_pages - 1) * shape.page_size
    if fits < max(options.context, shape.page_size):
        raise ValueError(
            f"a KV cache of {context} tokens cannot be allocated ({why}): lower "
            f"{options.context_flag} or --kv-memory, or end what else uses the device"
        )
    context = min(context, fits)
    note = "the device's memory was less than it said: the KV cache holds"
    return num_pages, context, f"{note} {fits} tokens, and the context is {context}"


def cache_dtypes(options: EngineOptions, fast: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
    """What attention computes in, and what the KV cache holds. fast: of this device, for "auto"."""
    kv_dtype = {**TORCH_DTYPES, **QUANTISED}.get(options.cache_type, fast)
    return (fast if kv_dtype in QUANT_MAX else kv_dtype), kv_dtype


def check_options(options: EngineOptions) -> None:
    """What can be known to be wrong before anything is loaded.

    Raises ValueError, or StrategyUnavailable for a policy that the device cannot follow.
    """
    check_policy(options.policy, pick_device(options.device).type)
    if options.dtype not in DTYPES:
        raise ValueError(f"unknown dtype {options.dtype!r}: one of {', '.join(DTYPES)}")
    if options.cache_type not in CACHE_TYPES:
        raise ValueError(
            f"unknown KV cache type {options.cache_type!r}: one of {', '.join(CACHE_TYPES)}"
        )
    if options.page_size not in PAGE_SIZES:
        sizes = ", ".join(map(str, PAGE_SIZES))
        raise ValueError(f"page size {options.page_size} is not one of {sizes}")


def pick_device(name: str) -> torch.device:
    """A GPU with its number, "cuda" being the first. Raises ValueError where there is none."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
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
        return torch.device("cuda", device.index or 0)
    return device


def describe_device(device: torch.device) -> str:
    """For a person: "cpu, 2 threads", "NVIDIA H200"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu, {counted(torch.get_num_threads(), 'thread')}"


def describe_types(weight: torch.dtype, packed: Sequence[str], kv_dtype: torch.dtype) -> str:
    """For a person: "bf16", or "Q4_1 weights, f16 KV" where they differ. packed: quant types."""
    short = {dtype: name for name, dtype in {**TORCH_DTYPES, **QUANTISED}.items()}
    weights, kv = "/".join(packed) or short[weight], short[kv_dtype]
    return weights if weights == kv else f"{weights} weights, {kv} KV"
