"""What the benchmark is asked for: its flags, and their defaults on each kind of device."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pkvchat.kernels.attention.registry import STRATEGIES

from ..arguments import by_rule, list_of, quoted
from ..errors import UsageError
from ..settings import RULES, Rule, TypeRule
from .traces import HELD_OUT_SEEDS, TRACES

ENGINES = (*STRATEGIES, "adaptive", "oracle")
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}  # torch's names by ours
KV_DTYPES = {**DTYPES, "fp8": "float8_e4m3fn", "q8_0": "int8"}
_HEAD_DIMS = (64, 80, 96, 128, 256)


@dataclass(frozen=True)
class BenchOptions:
    """Each field is the flag of its name.

    traces, trace_file: what is served; cases, grid: single batches; none of them: some of both.
    heads: query and KV heads. dtype, kv_dtype: torch's names; kv_dtype "" is dtype, and one that is
    not quantised is the same.
    layers: of the model in the model's protocol. repeats: of each trace; the median of each step
    counts. max_active: None for the paper's.
    """

    heads: tuple[int, int]
    head_dim: int
    dtype: str
    layers: int
    repeats: int
    seeds: tuple[int, ...]
    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    groups: tuple[int, ...]
    steps: int | None = None
    device: str = "auto"
    page_size: int = 16
    kv_dtype: str = ""
    hole_fraction: float = 0.0
    max_active: int | None = None
    traces: tuple[str, ...] = ()
    trace_file: Path | None = None
    cases: tuple[str, ...] = ()
    grid: bool = False
    between: bool = False
    engines: tuple[str, ...] = ENGINES

    @classmethod
    def of(cls, device_type: str, given: Mapping[str, Any]) -> BenchOptions:
        """The defaults for a kind of device, with what was ``given`` in their place.

        Raises UsageError for a KV cache of another dtype that is not quantised.
        """
        values = {**DEFAULTS[device_type], **given}
        kv_dtype = values.get("kv_dtype", "")
        if kv_dtype in DTYPES.values():
            if given.get("dtype", kv_dtype) != kv_dtype:
                raise UsageError(
                    f"--kv-dtype {kv_dtype} with --dtype {values['dtype']}: a KV cache that is not "
                    "quantised holds what attention computes in; leave one of them out"
                )
            values |= {"dtype": kv_dtype, "kv_dtype": ""}
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})


# Those of a CPU are for a small model and end within a minute or so.
DEFAULTS: dict[str, dict[str, Any]] = {
    "cuda": {
        "heads": (32, 8),
        "head_dim": 128,
        "dtype": "float16",
        "layers": 32,
        "repeats": 3,
        "seeds": HELD_OUT_SEEDS,
        "batches": (1, 2, 4, 8, 16, 32, 64),
        "lengths": tuple(512 << i for i in range(9)),
        "groups": (1, 2, 4, 8),
    },
    "cpu": {
        "heads": (8, 2),
        "head_dim": 64,
        "dtype": "float32",
        "layers": 2,
        "repeats": 1,
        "steps": 3,
        "seeds": HELD_OUT_SEEDS[:1],
        "batches": (1, 4),
        "lengths": (1024, 4096),
        "groups": (4,),
    },
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """All flags; those that are not given stay out of the namespace."""
    _add_workload_flags(parser.add_argument_group("what is decoded"))
    _add_shape_flags(parser.add_argument_group("the attention's shape"))
    _add_output_flags(parser.add_argument_group("what comes out"))
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def _add_workload_flags(group: argparse._ArgumentGroup) -> None:
    traces = group.add_mutually_exclusive_group()
    traces.add_argument(
        "--trace",
        dest="traces",
        metavar="NAME,...",
        type=_names(TRACES),
        help=f"serve the paper's traces: {', '.join(TRACES)}",
    )
    traces.add_argument(
        "--trace-file",
        metavar="FILE",
        type=Path,
        help="serve the requests of a CSV or JSON file: prompt_len, decode_len, arrival",
    )
    group.add_argument(
        "--cases",
        metavar="TEXT,...",
        type=_tuple(Rule(str, "part of a batch's name, or all", bool)),
        help="the named batches whose names have one of these in them (all: each of them)",
    )
    group.add_argument(
        "--grid", action="store_true", help="every --batch x --length x --group, even and ragged"
    )
    for flag, dest, kind, text in (
        ("--batch", "batches", _tuple(_UP_TO_1024), "rows of the grid's batches"),
        ("--length", "lengths", _tuple(_COUNT), "their mean lengths"),
        ("--group", "groups", _tuple(_COUNT), "their query heads per KV head"),
    ):
        group.add_argument(flag, dest=dest, metavar="N,...", type=kind, help=text)
    group.add_argument(
        "--max-active", metavar="N", type=_up_to_1024, help="requests decoded at once [the paper's]"
    )
    group.add_argument(
        "--seeds", metavar="N,...", type=_tuple(Rule(int, "whole numbers")), help="of the traces"
    )
    group.add_argument(
        "--steps",
        metavar="N",
        type=_up_to_65536,
        help="decode steps of a trace, at most [the paper's]",
    )
    group.add_argument(
        "--hole-fraction",
        metavar="X",
        type=by_rule(Rule(float, "a number from 0 to 0.9", lambda x: 0 <= x <= 0.9)),
        help="share of the KV cache's pages between those in use that nobody owns [0]",
    )
    group.add_argument(
        "--engine",
        dest="engines",
        metavar="NAME,...",
        type=_names(ENGINES),
        help=f"of {', '.join(ENGINES)} [all that run here]",
    )
    group.add_argument("--repeats", metavar="N", type=_count, help="runs of each trace")
    group.add_argument(
        "--layers", metavar="N", type=_up_to_1024, help="of the model that the traces decode with"
    )
    group.add_argument(
        "--between",
        action="store_true",
        help="cases and grid: a small kernel between layers that depends on both, as in a model",
    )


def _add_shape_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--device", type=by_rule(RULES["device"]), help="auto, cpu, cuda or cuda:N")
    group.add_argument(
        "--heads", metavar="Q/KV", type=_heads, help="query and KV heads, such as 32/8"
    )
    dims = ", ".join(map(str, _HEAD_DIMS))
    head_dim = Rule(int, f"one of {dims}", lambda n: n in _HEAD_DIMS)
    group.add_argument("--head-dim", metavar="N", type=by_rule(head_dim), help=f"one of {dims}")
    group.add_argument(
        "--page-size",
        metavar="N",
        type=by_rule(RULES["page_size"]),
        help="tokens in a page: 16, 32 or 64 [16]",
    )
    group.add_argument(
        "--dtype", metavar="TYPE", type=_named(DTYPES), help=f"one of {', '.join(DTYPES)}"
    )
    group.add_argument(
        "--kv-dtype",
        metavar="TYPE",
        type=_named(KV_DTYPES),
        help=f"of the KV cache: {', '.join(KV_DTYPES)} [as --dtype]",
    )


def _add_output_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-o", dest="output", default="md", choices=("md", "json"), help="format [%(default)s]"
    )
    group.add_argument("--output", dest="output_file", metavar="FILE", type=Path, help="write here")
    group.add_argument("--plot", metavar="FILE.png", type=Path, help="draw times against the floor")
    group.add_argument(
        "--from",
        dest="sources",
        metavar="FILE.json",
        nargs="+",
        type=Path,
        help="measure nothing: report or draw what earlier runs have written",
    )


def check_outputs(output_file: Path | None, plot: Path | None) -> None:
    """Raises UsageError for what would fail after minutes of measuring."""
    for flag, path in (("--output", output_file), ("--plot", plot)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise UsageError(f"{flag} {path}: name a file in a directory that exists")
    if plot is None:
        return
    if plot.suffix.lower() != ".png":
        raise UsageError(f"--plot {plot}: only PNG is written; give a name that ends in .png")
    if find_spec("matplotlib") is None:
        raise UsageError(
            "--plot needs matplotlib: pip install 'pkvchat[plot]', or measure here with "
            "-o json --output FILE and draw elsewhere with --from FILE --plot FILE.png"
        )


# --- values --------------------------------------------------------------------------------------

_COUNT = Rule(int, "a whole number of at least 1", lambda n: n >= 1)
_count = by_rule(_COUNT)
_UP_TO_1024 = Rule(int, "a whole number from 1 to 1024", lambda n: 1 <= n <= 1024)
_up_to_1024 = by_rule(_UP_TO_1024)
_up_to_65536 = by_rule(Rule(int, "a whole number from 1 to 65536", lambda n: 1 <= n <= 65536))


def _tuple(rule: Rule) -> Any:
    parse = list_of(rule)
    return lambda text: tuple(parse(text))


def _names(known: tuple[str, ...]) -> Any:
    return _tuple(Rule(str, f"of {', '.join(known)}", lambda name: name in known))


def _named(known: Mapping[str, str]) -> Any:
    parse = by_rule(TypeRule(str, f"one of {', '.join(known)}", lambda name: name in known))
    return lambda text: known[parse(text)]


def _heads(text: str) -> tuple[int, int]:
    queries, _, kv = text.partition("/")
    try:
        heads = _up_to_1024(queries), _up_to_1024(kv)
    except argparse.ArgumentTypeError:
        heads = 0, 1
    if heads[0] and heads[0] % heads[1] == 0:
        return heads
    raise argparse.ArgumentTypeError(
        f"{quoted(text)} must be two whole numbers such as 32/8, at most 1024 and the first a "
        "multiple of the second"
    )
