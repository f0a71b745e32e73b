"""What a person has set: the defaults, then the settings file, then the flags.

The file is TOML in the user's config directory. Its keys are the fields of ``EngineOptions``, of
``Settings`` and, in a table of their own, of ``SamplingParams``:

    model = "llama-3-8b"
    kv_memory = "2G"
    theme = "dracula"

    [sampling]
    temperature = 0.2

    [keys]
    new_chat = "ctrl+n"
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from pkvchat.kernels.policy.policy import policy_names

from .errors import ChatError, UsageError
from .options import CACHE_TYPES, DTYPES, PAGE_SIZES, TYPE_ALIASES, EngineOptions
from .regular_file import check_regular
from .sampling import SAMPLING_NAMES, SamplingParams

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Settings:
    """keys: the app's commands, each with the key a person wants for it.

    mouse: whether the app listens to it, or leaves it to the terminal. panel: shown at the start.
    """

    engine: EngineOptions = field(default_factory=EngineOptions)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    system_prompt: str = ""
    theme: str = ""
    mouse: bool = True
    panel: bool = True
    keys: dict[str, str] = field(default_factory=dict)

    def with_values(self, values: Mapping[str, Any]) -> Settings:
        """These settings with ``values``, checked ones by field name, in their place."""

        def pick(cls: type) -> dict[str, Any]:
            return {f.name: values[f.name] for f in fields(cls) if f.name in values}

        return replace(
            self,
            engine=replace(self.engine, **pick(EngineOptions)),
            sampling=replace(self.sampling, **pick(SamplingParams)),
            **pick(Settings),
        )


@dataclass(frozen=True)
class Rule:
    """What one value must be. ``expects`` completes "must be ..."."""

    kind: type[int] | type[float] | type[str] | type[bool]
    expects: str
    holds: Callable[[Any], bool] = lambda _: True

    def check(self, value: object) -> Any:
        """``value`` as the program keeps it. Raises ValueError where it breaks the rule."""
        if self.kind is float and type(value) is int:
            value = float(value)
        if type(value) is not self.kind or not self.holds(value):
            raise ValueError(f"must be {self.expects}")
        return value

    def parse(self, text: str) -> Any:
        """The same from a flag's text."""
        try:
            return self.check(self.kind(text))
        except ValueError:
            raise ValueError(f"must be {self.expects}") from None


class SizeRule(Rule):
    """Bytes: a whole number, or text with a binary unit."""

    def check(self, value: object) -> int:
        size = value if type(value) is int else 0
        match = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", str(value), re.IGNORECASE)
        if type(value) is str and match:
            size = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
        if size <= 0:
            raise ValueError(f"must be {self.expects}")
        return size


def _within(low: float, high: float) -> str:
    return f"of at least {low}" if high == math.inf else f"from {low} to {high}"


def _whole(low: int, high: float = math.inf) -> Rule:
    return Rule(int, f"a whole number {_within(low, high)}", lambda v: low <= v <= high)


def _number(low: float, high: float = math.inf) -> Rule:
    return Rule(
        float, f"a number {_within(low, high)}", lambda v: low <= v <= high and v < math.inf
    )


def _choice(*names: str, rule: type[Rule] = Rule) -> Rule:
    return rule(str, f"one of {', '.join(names)}", lambda v: v in names)


class TypeRule(Rule):
    """A dtype, which may go by another name."""

    def check(self, value: object) -> Any:
        return super().check(TYPE_ALIASES.get(value, value) if type(value) is str else value)


class SwitchRule(Rule):
    """On or off."""

    def parse(self, text: str) -> bool:
        if text not in ("true", "false", "on", "off"):
            raise ValueError(f"must be {self.expects}")
        return text in ("true", "on")


_TEXT = Rule(str, "text")
_SWITCH = SwitchRule(bool, "true or false")

RULES: dict[str, Rule] = {
    "model": Rule(str, "a model's name or path", bool),
    "device": Rule(
        str,
        "auto, cpu, cuda or cuda:N",
        lambda v: re.fullmatch(r"auto|cpu|cuda(:\d+)?", v) is not None,
    ),
    "dtype": _choice(*DTYPES, rule=TypeRule),
    "context": _whole(0),
    "page_size": Rule(int, f"one of {', '.join(map(str, PAGE_SIZES))}", lambda v: v in PAGE_SIZES),
    "kv_memory": SizeRule(str, "a number of bytes, or a size such as 512M or 2G"),
    "memory_limit": SizeRule(str, "a number of bytes, or a size such as 11G"),
    "cache_type_k": _choice(*CACHE_TYPES, rule=TypeRule),
    "cache_type_v": _choice(*CACHE_TYPES, rule=TypeRule),
    "policy": _choice(*policy_names()),
    "threads": _whole(0, os.cpu_count() or 1),
    "temperature": _number(0),
    "top_k": _whole(0),
    "top_p": _number(0, 1),
    "min_p": _number(0, 1),
    "repeat_penalty": Rule(float, "a number above 0", lambda v: math.isfinite(v) and v > 0),
    "repeat_last_n": _whole(-1),
    "seed": _whole(0, 2**63 - 1),
    "max_tokens": Rule(int, "a whole number of at least 1, or -1", lambda v: v >= 1 or v == -1),
    "system_prompt": _TEXT,
    "theme": _TEXT,
    "mouse": _SWITCH,
    "panel": _SWITCH,
}


def settings_path() -> Path:
    return user_config_path("pkvchat") / "config.toml"


def load_settings(path: Path | None = None) -> Settings:
    """Settings from ``path`` (the user's file by default); the defaults where there is no file.

    Raises UsageError for a file that says something wrong, ChatError for one that can't be read.
    """
    path = path or settings_path()
    try:
        table = tomllib.loads(_read(path))
    except FileNotFoundError:
        return Settings()
    except OSError as error:
        raise ChatError(f"cannot read the settings file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from error
    except (ValueError, RecursionError) as error:  # also for a number of 5000 digits
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    sampling = _table(path, "sampling", table.pop("sampling", {}))
    keys = _table(path, "keys", table.pop("keys", {}))
    values = _checked(path, "", table, RULES.keys() - set(SAMPLING_NAMES))
    values |= _checked(path, "sampling.", sampling, set(SAMPLING_NAMES))
    values["keys"] = {
        action: _check(path, f"keys.{action}", key, Rule(str, 'a key such as "ctrl+n"', bool))
        for action, key in keys.items()
    }
    return Settings().with_values(values)


def _read(path: Path) -> str:
    check_regular(path)
    return path.read_text(encoding="utf-8-sig")


def save_settings(changes: Mapping[str, Any], path: Path | None = None) -> Path:
    """Write ``changes``, checked values by field name, into the settings file and return its path.

    All else in it stays, comments and order too. None takes a value out. Raises ChatError.
    """
    import tomlkit  # too slow for every start
    from tomlkit.exceptions import TOMLKitError

    path = (path or settings_path()).resolve()  # a link stays one
    try:
        document = tomlkit.parse(_read(path) if path.exists() else "")
        for name, value in changes.items():
            table: Any = document
            if name in SAMPLING_NAMES:
                table = document.setdefault("sampling", tomlkit.table())
                _table(path, "sampling", table)
            if value is None:
                table.pop(name, None)
            else:
                table[name] = value
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, tomlkit.dumps(document))
    except OSError as error:
        raise ChatError(f"cannot write the settings file {path}: {error.strerror}") from error
    except (UnicodeDecodeError, TOMLKitError) as error:
        raise ChatError(f"{path} is not valid TOML ({error}), so it is left as it is") from error
    return path


def _replace(path: Path, text: str) -> None:
    """At once: a full disk leaves the old file whole, and of two programs one's is whole."""
    new = path.with_suffix(f".new-{os.getpid()}")
    try:
        new.write_text(text, encoding="utf-8")
        if path.exists():
            shutil.copymode(path, new)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _table(path: Path, name: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {name} = {value!r} must be a table, written as [{name}]")
    return value


def _checked(
    path: Path, prefix: str, table: Mapping[str, object], known: set[str]
) -> dict[str, Any]:
    for name in table:
        if name not in known:
            where = f"[{prefix[:-1]}]" if prefix else "the file"
            raise UsageError(
                f"{path}: unknown key {prefix}{name}; {where} may have {', '.join(sorted(known))}"
            )
    return {name: _check(path, prefix + name, value, RULES[name]) for name, value in table.items()}


def _check(path: Path, key: str, value: object, rule: Rule) -> Any:
    try:
        return rule.check(value)
    except ValueError as error:
        raise UsageError(f"{path}: {key} = {value!r} {error}") from None
