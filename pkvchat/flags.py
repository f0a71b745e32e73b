"""The command line's flags, by what they are about."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from .arguments import by_rule, list_of
from .errors import UsageError
from .options import CACHE_TYPES, EngineOptions
from .sampling import SamplingParams
from .settings import RULES, Rule

# Flags that are settings too: field, names, what stands for the value, help. RULES checks them.
_ENGINE_FLAGS = (
    (
        "model",
        "-m --model -hf",
        "NAME",
        "a name that `pkvchat models` lists, a path, owner/name[:QUANT]",
    ),
    ("threads", "-t --threads", "N", "CPU threads (0: torch's choice)"),
    ("device", "--device", "NAME", "auto, cpu, cuda or cuda:N"),
    ("dtype", "--dtype", "TYPE", "auto, f32, f16 or bf16"),
    ("kv_memory", "--kv-memory", "SIZE", "memory for the KV cache, such as 512M or 2G"),
    ("memory_limit", "--memory-limit", "SIZE", "of a GPU, to use no more memory than this"),
    ("cache_type_k", "-ctk --cache-type-k", "TYPE", f"K in the cache: {', '.join(CACHE_TYPES)}"),
    ("cache_type_v", "-ctv --cache-type-v", "TYPE", "V in the cache: the same as K"),
    ("page_size", "--page-size", "N", "tokens in a KV page: 16, 32 or 64"),
    ("policy", "--policy", "NAME", "adaptive, or forced-STRATEGY"),
)
_CHAT_FLAGS = (
    ("context", "-c --ctx-size", "N", "tokens a chat may have (0: the model's own limit)"),
    ("max_tokens", "-n --predict --n-predict", "N", "new tokens at most (-1: no limit)"),
    ("seed", "-s --seed", "N", "the same seed gives the same text"),
    ("temperature", "--temp", "X", "0 always takes the likeliest token"),
    ("top_k", "--top-k", "N", "choose among the N likeliest tokens (0: all)"),
    ("top_p", "--top-p", "X", "choose among the likeliest that make up X of the probability"),
    ("min_p", "--min-p", "X", "leave out tokens below X times the likeliest one's probability"),
    ("repeat_penalty", "--repeat-penalty", "X", "make recent tokens less likely (1: off)"),
    ("repeat_last_n", "--repeat-last-n", "N", "how many tokens are recent (-1: all)"),
)

_COUNT = Rule(int, "a whole number of at least 1", lambda n: n >= 1)


class Parser(argparse.ArgumentParser):
    """Keeps an error to one line, and leaves flags that were not given out of the namespace."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, argument_default=argparse.SUPPRESS, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Nothing unknown is passed on, so that a command points to its own help."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def _add_settings(
    group: argparse._ActionsContainer, flags: Sequence[tuple[str, str, str, str]]
) -> None:
    """Flags that are settings too, with their defaults in their help."""
    defaults = vars(EngineOptions()) | vars(SamplingParams())
    for name, names, metavar, text in flags:
        if defaults[name] is not None:
            text += f" [{defaults[name]}]"
        group.add_argument(
            *names.split(), dest=name, metavar=metavar, type=by_rule(RULES[name]), help=text
        )


def add_chat_flags(parser: Parser) -> None:
    once = parser.add_mutually_exclusive_group()
    once.add_argument("-p", "--prompt", metavar="TEXT", type=utf8_text, help="answer TEXT and exit")
    once.add_argument("-f", "--file", metavar="FILE", help="answer FILE's text (-: standard input)")
    parser.add_argument(
        "-sys",
        "--system-prompt",
        metavar="TEXT",
        type=utf8_text,
        help="what the model is told first",
    )
    parser.add_argument("--no-tui", action="store_true", help="plain lines, even in a terminal")
    parser.add_argument(
        "--no-mouse", dest="mouse", action="store_false", help="leave the mouse to the terminal"
    )
    parser.add_argument(
        "--steps",
        dest="steps_path",
        metavar="FILE",
        type=by_rule(Rule(str, "a file's name", bool)),
        help="log each decode step as a line of JSON",
    )
    _add_settings(parser.add_argument_group("answers"), _CHAT_FLAGS)
    add_engine_flags(parser)


def add_engine_flags(parser: Parser, but: str = "") -> None:
    """but: the setting that a command has a flag of its own for."""
    group = parser.add_argument_group("engine")
    _add_settings(group, [flag for flag in _ENGINE_FLAGS if flag[0] != but])
    add_debug_flag(group)


def add_debug_flag(group: argparse._ActionsContainer) -> None:
    group.add_argument("--debug", action="store_true", help="show tracebacks")


def add_name(parser: Parser) -> None:
    """Of a model to fetch or delete."""
    name = by_rule(RULES["model"])
    parser.add_argument("name", metavar="NAME", type=name, help="from the list, or owner/name")
    add_debug_flag(parser)


def add_bench_flags(parser: Parser) -> None:
    counts = list_of(Rule(int, "whole numbers, such as 0,4096", lambda n: n >= 0))
    for flag, dest, default, kind, text in (
        ("-p", "prompt_tokens", "512", counts, "prompt tokens to read (0: no pp test)"),
        ("-n", "new_tokens", "128", counts, "tokens to decode (0: no tg test)"),
        ("-d", "depths", "0", counts, "tokens in the context before that"),
        ("-b", "batches", "1", list_of(_COUNT), "sequences at once"),
        ("-r", "repetitions", "5", by_rule(_COUNT), "runs of each test, once it is warm"),
    ):
        text += " [%(default)s]"
        parser.add_argument(flag, dest=dest, default=default, metavar="N", type=kind, help=text)
    parser.add_argument(
        "--policy",
        dest="policies",
        action="extend",
        metavar="NAME",
        type=list_of(RULES["policy"]),
        help="adaptive, forced-STRATEGY, or a list, whose runs take turns [adaptive]",
    )
    parser.add_argument(
        "--random-weights",
        metavar="SHAPE",
        help="no model file: random weights of llama-3-8b or qwen3-30b-a3b",
    )
    parser.add_argument(
        "--quant", default="Q4_K_M", help="of random weights: bf16, Q8_0, Q4_K_M [%(default)s]"
    )
    parser.add_argument(
        "-o", dest="output", default="md", choices=("md", "json", "csv"), help="output format"
    )
    add_engine_flags(parser, but="policy")


def add_compare_flags(parser: Parser) -> None:
    parser.add_argument(
        "--policy",
        dest="policies",
        action="extend",
        required=True,
        metavar="NAME",
        type=list_of(RULES["policy"]),
        help="adaptive, or forced-STRATEGY; a list, or give it twice or more",
    )
    parser.add_argument(
        "-f",
        "--file",
        required=True,
        metavar="FILE",
        help="prompts: blocks between blank lines, or where none is blank one a line (-: stdin)",
    )
    parser.add_argument(
        "-b",
        dest="batch",
        default="1",
        metavar="N",
        type=by_rule(_COUNT),
        help="prompts at once [%(default)s]",
    )
    parser.add_argument(
        "-n",
        "--predict",
        dest="max_tokens",
        default="128",
        metavar="N",
        type=by_rule(RULES["max_tokens"]),
        help="new tokens at most (-1: no limit) [%(default)s]",
    )
    _add_settings(parser, [flag for flag in _CHAT_FLAGS if flag[0] == "context"])
    parser.add_argument(
        "-o", dest="output", default="md", choices=("md", "json", "jsonl"), help="output format"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the steps' times (needs matplotlib)")
    add_engine_flags(parser, but="policy")


def utf8_text(text: str) -> str:
    """An argument's type: what a tokenizer can read."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"not valid UTF-8 at character {error.start}") from None
    return text
