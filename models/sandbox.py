"""Jinja for chat templates, which come with a model and are not to be trusted."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

RENDER_SECONDS = 2.0
LARGEST_REPEAT = 1 << 20
LARGEST_POWER = 64


class Sandbox(ImmutableSandboxedEnvironment):
    """Set up as transformers does, so that templates render the same; huge products refused."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self.filters["tojson"] = _to_json

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and abs(right) > LARGEST_POWER:
            raise SecurityError(f"power {right} is too large")
        for items, times in ((left, right), (right, left)):
            if hasattr(items, "__len__") and len(items) * times > LARGEST_REPEAT:
                raise SecurityError(f"{times} repeats are too many")
        return super().call_binop(context, operator, left, right)


def render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Raises jinja2.TemplateError, or whatever else the template provokes; never runs on."""
    with _deadline(RENDER_SECONDS):
        return template.render(variables)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Without Jinja's HTML escapes."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raises TimeoutError from whichever line of Python runs next once time is up.

    A trace function is the one way to stop a loop in this thread, whichever thread it is.
    """
    end = time.monotonic() + seconds

    def check(_frame: FrameType, _event: str, _arg: Any) -> Any:
        if time.monotonic() > end:
            raise TimeoutError(f"it runs longer than {seconds:g} s")
        return check

    before = sys.gettrace()
    sys.settrace(check)
    try:
        yield
    finally:
        sys.settrace(before)
