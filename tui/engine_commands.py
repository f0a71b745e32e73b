"""Commands on the engine: policy, model, sampling, what it says of itself."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from pkvchat.messages import SetPolicy
from pkvchat.sampling import SamplingParams
from pkvchat.settings import RULES

from .command import Command, CommandError

if TYPE_CHECKING:
    from .app import ChatApp

# Names that people know from llama.cpp and Ollama, for ours.
_ALIASES = {"temp": "temperature", "num_predict": "max_tokens", "n_predict": "max_tokens"}
_PARAMETERS = [field.name for field in fields(SamplingParams)]


def policies(app: ChatApp) -> list[str]:
    """The policies that can be asked for: adaptive, and each strategy that can run here."""
    ready = app.session.state.ready
    usable = [name for name, why in ready.strategies.items() if not why] if ready else []
    return ["adaptive", *(f"forced-{name}" for name in usable)]


def policy(app: ChatApp, name: str) -> None:
    """Set the policy by name, or take the next one."""
    names = policies(app)
    if not name:
        current = app.session.state.policy
        name = names[(names.index(current) + 1) % len(names)] if current in names else names[0]
    app.session.client.send(SetPolicy(name))  # the engine says what is wrong with a name


def model(app: ChatApp, name: str) -> None:
    if not name:
        raise CommandError("/model needs a catalogue name or a path")
    _restart_with(app, model=name)


def context(app: ChatApp, tokens: str) -> None:
    if not tokens.isdecimal():
        raise CommandError("/context needs a number of tokens; 0 means the model's own limit")
    _restart_with(app, context=int(tokens))


def _restart_with(app: ChatApp, **changes: object) -> None:
    if any(tab.busy for tab in app.tabs):
        raise CommandError("an answer runs; stop it before the engine restarts")
    app.session.client.options = replace(app.session.client.options, **changes)  # type: ignore[arg-type]
    app.session.restart()


def set_parameter(app: ChatApp, text: str) -> None:
    """`/set parameter NAME VALUE`, as Ollama has it; the word `parameter` may be left out."""
    words = text.split()
    if words[:1] == ["parameter"]:
        words = words[1:]
    if len(words) != 2:
        raise CommandError(f"/set parameter NAME VALUE; the names are {', '.join(_PARAMETERS)}")
    name = _ALIASES.get(words[0], words[0])
    if name not in _PARAMETERS:
        raise CommandError(f"no parameter {words[0]!r}; the names are {', '.join(_PARAMETERS)}")
    try:
        value = RULES[name].parse(words[1])
    except ValueError as error:
        raise CommandError(f"{name} {words[1]!r} {error}") from error
    app.session.params = replace(app.session.params, **{name: value})
    app.note(app.tab, f"{name} is {value} from the next answer on")


def show(app: ChatApp, what: str) -> None:
    ready, policy_name = app.session.state.ready, app.session.state.policy
    lines = {
        "info": f"{ready.model} on {ready.device}, {ready.dtype}, context {ready.context:,}, "
        f"{ready.pages_total:,} pages of {ready.page_size} tokens, policy {policy_name}"
        if ready
        else "the engine is not ready",
        "parameters": ", ".join(f"{n} {getattr(app.session.params, n)}" for n in _PARAMETERS),
        "system": f"system prompt: {app.tab.chat.system or 'none'}",
        "strategies": "; ".join(
            f"{name}: {why or 'available'}"
            for name, why in (ready.strategies.items() if ready else ())
        ),
    }
    if what not in lines:
        raise CommandError(f"/show {'|'.join(lines)}")
    app.note(app.tab, lines[what])


def stats(app: ChatApp, _: str) -> None:
    meter = app.session.meter
    total = sum(meter.shares.values())
    if not total:
        raise CommandError("no decode step yet")
    shares = ", ".join(f"{n} {100 * c / total:.1f}%" for n, c in meter.shares.most_common())
    answers = [m.version for tab in app.tabs for m in tab.chat.messages if m.version.ttft_s]
    ttft = sorted(version.ttft_s for version in answers)
    first = f"; first token after {ttft[len(ttft) // 2]:.2f} s (median)" if ttft else ""
    app.note(
        app.tab,
        f"{total:,} decode steps: {shares}; {meter.average:.1f} tokens/s on average{first}",
    )


COMMANDS = (
    Command("policy", "choose the policy", policy, "f8", "policy", "NAME"),
    Command("model", "restart with another model", model, slash="model", argument="NAME"),
    Command("context", "restart with another context", context, slash="context", argument="N"),
    Command("set", "set a sampling parameter", set_parameter, "", "set", "NAME VALUE"),
    Command("show", "what is in force", show, "", "show", "WHAT"),
    Command("stats", "steps, strategies and speed so far", stats, slash="stats"),
)
