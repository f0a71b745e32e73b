"""Commands on the engine: policy, model, sampling, what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pkvchat.clean import one_line
from pkvchat.messages import Ready, RunBench, SetPolicy
from pkvchat.models.catalogue import CATALOGUE
from pkvchat.sampling import SAMPLING_NAMES
from pkvchat.settings import RULES

from .command import Command, CommandError, one_of, paths
from .context import context
from .host import Host

# Names that people know from llama.cpp and Ollama, for ours.
_ALIASES = {
    "temp": "temperature",
    "num_predict": "max_tokens",
    "n_predict": "max_tokens",
    "num_ctx": "context",
}
_NAMES = ", ".join(SAMPLING_NAMES)


def policies(host: Host) -> list[str]:
    """The policies that can be asked for: adaptive, and each strategy that can run here."""
    usable = [name for name, why in host.ready.strategies.items() if not why] if host.ready else []
    return ["adaptive", *(f"forced-{name}" for name in usable)]


def policy(host: Host, name: str) -> None:
    """Set the policy by name; without one, say which it is and which there are."""
    if not name:
        return host.say(f"policy: {host.policy}; there are {', '.join(policies(host))}")
    return host.send(SetPolicy(name))  # the engine says what is wrong with a name


def next_policy(host: Host, _: str) -> None:
    names, now = policies(host), host.policy
    host.send(SetPolicy(names[(names.index(now) + 1) % len(names)] if now in names else names[0]))


def _policy_names(host: Host, start: str) -> list[str]:
    return [name for name in policies(host) if name.startswith(start)]


def model(host: Host, name: str) -> None:
    if not name:
        raise CommandError("/model needs a name that `pkvchat models` lists, or a path")
    host.restart(model=name)


def _model_names(host: Host, start: str) -> list[str]:
    return [name for name in CATALOGUE if name.startswith(start)] or paths(host, start)


def set_parameter(host: Host, text: str) -> None:
    """`/set parameter NAME VALUE`, as Ollama has it; the word `parameter` may be left out."""
    words = text.split()
    if words[:1] == ["parameter"]:
        words = words[1:]
    if len(words) != 2:
        raise CommandError(f"/set parameter NAME VALUE; the names are {_NAMES}")
    name = _ALIASES.get(words[0], words[0])
    if name == "context":
        return context(host, words[1])
    if name not in SAMPLING_NAMES:
        raise CommandError(f"no parameter {words[0]!r}; the names are {_NAMES}")
    try:
        value = RULES[name].parse(words[1])
    except ValueError as error:
        raise CommandError(f"{name} {words[1]!r} {error}") from error
    host.params = replace(host.params, **{name: value})
    return host.say(f"{name} is {value} from the next answer on")


def _parameter_names(_: Host, start: str) -> list[str]:
    word = "parameter " if start.startswith("parameter ") else ""
    start = start.removeprefix(word)
    return [word + name for name in SAMPLING_NAMES if name.startswith(start)]


def show(host: Host, what: str) -> None:
    if what not in _SHOWN:
        raise CommandError(f"/show {'|'.join(_SHOWN)}")
    host.say(_SHOWN[what](host))


def _ready(host: Host) -> Ready:
    if host.ready is None:
        raise CommandError("the engine is not ready")
    return host.ready


def _info(host: Host) -> str:
    ready = _ready(host)
    return (
        f"model       {ready.model}\n"
        f"device      {ready.device}\n"
        f"types       {ready.dtype}\n"
        f"context     {ready.context:,} tokens\n"
        f"KV cache    {ready.pages_total:,} pages of {ready.page_size} tokens\n"
        f"policy      {host.policy}"
    )


def _parameters(host: Host) -> str:
    return "\n".join(f"{name:<16}{getattr(host.params, name)}" for name in SAMPLING_NAMES)


def _strategies(host: Host) -> str:
    strategies = _ready(host).strategies
    return "\n".join(f"{name:<12}{why or 'available'}" for name, why in strategies.items())


_SHOWN: dict[str, Callable[[Host], str]] = {
    "info": _info,
    "parameters": _parameters,
    "template": lambda host: _ready(host).template,
    "system": lambda host: host.current.chat.system or "no system prompt",
    "strategies": _strategies,
}


def stats(host: Host, _: str) -> None:
    meter = host.meter
    total = meter.shares.total()
    if not total:
        raise CommandError("no decode step yet")
    shares = ", ".join(f"{n} {100 * c / total:.1f}%" for n, c in meter.shares.most_common())
    itl, ttft = meter.itl_ms(), meter.ttft_s()
    first = f"{ttft[0]:.2f} s to the first (p95 {ttft[1]:.2f})" if meter.ttfts else "- to the first"
    host.say(
        f"{total:,} decode steps: {shares}; {meter.average:.1f} tokens/s on average; "
        f"{itl[0]:.1f} ms between tokens (p95 {itl[1]:.1f}), {first}"
    )


def bench(host: Host, _: str) -> None:
    """The table follows once it is measured."""
    _ready(host)
    if host.answered:
        title = one_line(host.answered.chat.name)
        raise CommandError(f"“{title}” is being answered: stop that before /bench")
    host.say("measuring how fast prompts are read (pp) and tokens decoded (tg)")
    host.send(RunBench())


COMMANDS: tuple[Command[Host], ...] = (
    Command("policy", "take the next policy", next_policy, "f8"),
    Command("set_policy", "see or set the policy", policy, "", "policy", "[NAME]", _policy_names),
    Command("model", "go on with another model", model, "", "model", "NAME", _model_names),
    Command(
        "set",
        "set a sampling parameter",
        set_parameter,
        slash="set",
        argument="NAME VALUE",
        complete=_parameter_names,
    ),
    Command(
        "show",
        "what is in force",
        show,
        slash="show",
        argument="WHAT",
        complete=one_of(_SHOWN),
    ),
    Command("bench", "measure the engine", bench, slash="bench"),
    Command("stats", "steps, strategies and speed so far", stats, slash="stats"),
)
