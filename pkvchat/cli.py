"""The command line. Nothing heavy is imported before the arguments are known to be right."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from pkvchat.models.errors import ModelError

from . import __version__
from .attention_bench.options import add_flags as add_attention_flags
from .clean import message, visible
from .errors import INTERRUPTED, ChatError, UsageError
from .flags import (
    Parser,
    add_bench_flags,
    add_chat_flags,
    add_compare_flags,
    add_debug_flag,
    add_engine_flags,
    add_name,
)
from .options import MAX_PROMPT
from .settings import Settings, load_settings
from .streams import drop_output, is_failed_write, open_standard_streams

BROKEN_PIPE = 141  # and for a reader that went away
Run = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code: 0, 1 (run time), 2 (usage) or 128 + a signal."""
    # OpenMP's waiting threads spin for milliseconds by default. Where another program wants the
    # core (the interface, say) that slows each step tenfold; this is some tens of microseconds.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    argv = sys.argv[1:] if argv is None else argv
    open_standard_streams()
    debug = "--debug" in argv
    if debug:  # see kernels/attention/checks.py
        os.environ.setdefault("PKVCHAT_CHECK_CONTENTS", "1")
    try:
        args = _parse(argv)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        drop_output()  # nobody reads any more
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ChatError, ModelError) as error:
        if debug:
            _print_traceback()
        print(f"pkvchat: {message(error)}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    except Exception as error:
        if is_failed_write(error):
            drop_output()
            print(f"pkvchat: cannot write the output: {error.strerror}", file=sys.stderr)
            return 1
        if debug:
            _print_traceback()
        what = f"{type(error).__name__}: {error}"
        print(
            f"pkvchat: this is a fault of pkvchat's: {message(what)}; "
            "please report it with what --debug prints (CONTRIBUTING.md says where)",
            file=sys.stderr,
        )
        return 1


def _print_traceback() -> None:
    print(visible(traceback.format_exc()), file=sys.stderr, end="")


# --- what the arguments ask for ------------------------------------------------------------------


def _chat(args: argparse.Namespace) -> int:
    """The app, or one answer with -p or -f, or the line program where there is no terminal."""
    settings = _settings(args)
    prompt = _prompt(args)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if prompt is None and terminal and "no_tui" not in args:
        from pkvchat.tui.app import run

        return run(settings.engine, settings.sampling, settings)

    from . import plain

    return plain.run(settings, prompt)


def _bench(args: argparse.Namespace) -> int:
    from . import bench

    cases = bench.cases(args.prompt_tokens, args.new_tokens, args.depths)
    if not cases:
        raise UsageError("bench -p 0 -n 0 has nothing to measure: give one of them tokens")
    weights = None
    if "random_weights" in args:
        if "model" in args:
            raise UsageError("-m and --random-weights: give one of them")
        weights = bench.RandomWeights(args.random_weights, args.quant)
    options = _settings(args).engine
    policies = list(dict.fromkeys(args.policies)) if "policies" in args else [options.policy]
    return bench.run(options, cases, args.batches, policies, args.repetitions, args.output, weights)


def _compare(args: argparse.Namespace) -> int:
    policies = list(dict.fromkeys(args.policies))
    if len(policies) < 2:
        raise UsageError(f"compare needs two policies, and got only {policies[0]}: give --policy B")
    text = _prompt(args)
    settings = _settings(args)
    from . import compare

    return compare.run(
        settings.engine,
        settings.sampling,
        policies,
        compare.split_prompts(text or ""),
        args.batch,
        args.output,
        getattr(args, "plot", None),
    )


def _bench_attention(args: argparse.Namespace) -> int:
    from .attention_bench import command

    return command.run(vars(args))


def _calibrate(args: argparse.Namespace) -> int:
    from . import calibrate

    return calibrate.run(_settings(args).engine)


def _models(_args: argparse.Namespace) -> int:
    from . import shelf

    return shelf.list_models()


def _pull(args: argparse.Namespace) -> int:
    from . import shelf

    return shelf.pull(args.name)


def _rm(args: argparse.Namespace) -> int:
    from . import shelf

    return shelf.rm(args.name)


def _settings(args: argparse.Namespace) -> Settings:
    settings = load_settings().with_values(vars(args))
    try:
        _ = settings.engine.cache_type
    except ValueError as error:  # K and V of two types
        raise UsageError(str(error)) from None
    return settings


def _prompt(args: argparse.Namespace) -> str | None:
    """The one prompt to answer, from -p or -f; None to hold a conversation."""
    if "prompt" in args:
        source, prompt = "-p", args.prompt
    elif "file" in args:
        source, prompt = args.file, _read(args.file)
    else:
        return None
    if not prompt.strip():
        raise UsageError(f"the prompt from {source} is empty")
    return str(prompt)


def _read(name: str) -> str:
    stdin = nullcontext(sys.stdin.buffer)  # it stays open
    try:
        with stdin if name == "-" else Path(name).open("rb") as file:
            raw = file.read(MAX_PROMPT + 1)
    except OSError as error:
        raise ChatError(f"cannot read the prompt file {name}: {error.strerror}") from error
    if len(raw) > MAX_PROMPT:
        raise ChatError(f"the prompt file {name} has more than {MAX_PROMPT} bytes: shorten it")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ChatError(
            f"the prompt file {name} is not UTF-8: byte {raw[error.start]:#04x} at {error.start}"
        ) from error


# --- the arguments -------------------------------------------------------------------------------


# Each command's name, what runs it, what adds its flags, a line about it and a few more.
_COMMANDS: tuple[tuple[str, Run, Callable[[Parser], None], str, str | None], ...] = (
    (
        "bench",
        _bench,
        add_bench_flags,
        "time prompt reading and decoding",
        "Time prompt reading (pp) and decoding (tg) as llama-bench does. Numbers may be lists: -d "
        "0,4096. The bound is of steps that read each weight and the KV once at the memory's speed "
        "and do nothing else; decoding comes near it, reading a prompt is bound by arithmetic.",
    ),
    (
        "compare",
        _compare,
        add_compare_flags,
        "answer the same prompts under several policies",
        "Answer the same prompts, greedily, under each policy, and say how fast each was, with "
        "which strategies, and where texts part.",
    ),
    (
        "bench-attention",
        _bench_attention,
        add_attention_flags,
        "time the attention strategies side by side",
        "Time the attention strategies on one GPU or CPU, without a model around them: on traces "
        "of requests that come and go, and on single batches; by default on both.",
    ),
    (
        "calibrate",
        _calibrate,
        add_engine_flags,
        "measure this device again",
        "Measure for a model which types this device is fast in and what each strategy costs on "
        "it. The first start does so by itself.",
    ),
    ("models", _models, add_debug_flag, "list models by name", None),
    ("pull", _pull, add_name, "download a model", None),
    ("rm", _rm, add_name, "delete a model", None),
)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """Raises UsageError, for an unknown flag with its name: not with the value after it, which
    argparse takes for a command."""
    parser = _parser()
    try:
        args = parser.parse_args(argv)
        _check_places(args, parser)
        return args
    except UsageError:
        flags = Parser(prog="pkvchat", add_help=False)
        add_chat_flags(flags)
        try:
            flags.parse_args(argv)
        except UsageError as error:
            if str(error).startswith("unrecognized arguments: -"):
                raise error from None
        raise


def _check_places(args: argparse.Namespace, parser: Parser) -> None:
    """Raises UsageError for a chat's flag before a command, which would not heed it."""
    if "command" in args:
        name, takes = args.command
        for action in parser._actions:
            if action.dest in args and action.dest not in takes:
                flag = "/".join(action.option_strings)
                raise UsageError(f"{flag} before {name} does nothing: {name}'s flags go behind it")


def _parser() -> Parser:
    parser = Parser(
        prog="pkvchat",
        description="Chat with a local model in the terminal.",
        epilog="Without a terminal, or with --no-tui, each input line is a prompt or a /command.",
    )
    parser.add_argument("--version", action="version", version=f"pkvchat {__version__}")
    add_chat_flags(parser)
    parser.set_defaults(run=_chat)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, run, add_flags, text, more in _COMMANDS:
        command = commands.add_parser(name, help=text, description=more)
        add_flags(command)
        takes = {action.dest for action in command._actions}
        command.set_defaults(run=run, command=(name, takes))
    return parser
