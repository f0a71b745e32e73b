"""Jinja for chat templates, which come with a model and are not to be trusted."""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from types import FrameType
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

RENDER_SECONDS = 2.0
LARGEST_REPEAT = 1 << 20
LARGEST_POWER = 64
LARGEST_GROWTH = 1 << 30  # bytes that rendering may add to the process
_WIDE = re.compile(r"%[^a-zA-Z%]*(\d{7}|\*)|\{[^}]*(\d{7}|\{)")  # in what pads: "%9999999d"


class Sandbox(ImmutableSandboxedEnvironment):
    """Set up as transformers does, so that templates render the same; huge products refused."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self.filters["tojson"] = _to_json
        for name in ("center", "indent"):
            self.filters[name] = _narrow(self.filters[name])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and abs(right) > LARGEST_POWER:
            raise SecurityError(f"power {right} is too large")
        if operator == "%":
            _check_format(left)
            return super().call_binop(context, operator, left, right)
        for items, times in ((left, right), (right, left)):
            if hasattr(items, "__len__") and len(items) * times > LARGEST_REPEAT:
                raise SecurityError(f"{times} repeats are too many")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        text = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        if isinstance(text, str):  # its methods
            _check_widths((*args, *kwargs.values()))
            _check_format(text)
        return super().call(context, obj, *args, **kwargs)


def render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Raises jinja2.TemplateError, or whatever else the template provokes; never runs on."""
    with _bounds(RENDER_SECONDS):
        return template.render(variables)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Without Jinja's HTML escapes."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _narrow(pad: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(pad)
    def narrow(*args: Any, **kwargs: Any) -> Any:
        _check_widths((*args, *kwargs.values()))
        return pad(*args, **kwargs)

    return narrow


def _check_widths(arguments: tuple[Any, ...]) -> None:
    for width in arguments:
        if isinstance(width, int) and width > LARGEST_REPEAT:
            raise SecurityError(f"a width of {width} is too large")


def _check_format(form: Any) -> None:
    if isinstance(form, str) and len(form) < LARGEST_REPEAT and _WIDE.search(form):
        raise SecurityError(f"{form[:40]!r} may pad without end")


def _peak_bytes() -> int:
    """The most memory that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextmanager
def _bounds(seconds: float) -> Iterator[None]:
    """Raises TimeoutError or MemoryError from whichever line of Python runs next once time is up
    or the process has grown by LARGEST_GROWTH.

    A trace function is the one way to stop a loop in this thread, whichever thread it is.
    """
    end, most = time.monotonic() + seconds, _peak_bytes() + LARGEST_GROWTH

    def check(_frame: FrameType, _event: str, _arg: Any) -> Any:
        if time.monotonic() > end:
            raise TimeoutError(f"it runs longer than {seconds:g} s")
        if _peak_bytes() > most:
            raise MemoryError(f"it takes more than {LARGEST_GROWTH >> 20} MiB")
        return check

    before = sys.gettrace()
    sys.settrace(check)
    try:
        yield
    finally:
        sys.settrace(before)
