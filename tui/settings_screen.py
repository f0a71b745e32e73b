"""The settings, to look at and change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Label, Select, TextArea

from pkvchat.clean import typed
from pkvchat.sampling import SAMPLING_NAMES
from pkvchat.settings import RULES

_HEAD = "Ctrl+S saves what you change, Esc leaves all as it was, Tab goes on."


class SettingsScreen(ModalScreen[dict[str, Any] | None]):
    """values: by field name. choices: what those that are chosen from a list may be.

    Dismissed with the values that were changed, each as the settings file could hold it.
    """

    BINDINGS: ClassVar = [("ctrl+s", "save", "save")]

    def __init__(self, values: Mapping[str, Any], choices: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self._values = values
        self._choices = choices

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="settings"):
            yield Label(Content(_HEAD))
            for name, value in self._values.items():
                with Horizontal(classes="setting"):
                    yield Label(Content(name.replace("_", " ")), classes="name")
                    yield self._field(name, value)
                    yield Label(self._hint(name), id=f"hint-{name}", classes="hint")

    def _field(self, name: str, value: Any) -> Widget:
        choices: list[tuple[Content, Any]] = [(Content(c), c) for c in self._choices.get(name, ())]
        if isinstance(value, bool):
            choices = [(Content("on"), True), (Content("off"), False)]
        if choices:
            return Select(choices, value=value, allow_blank=False, id=name, compact=True)
        if name == "system_prompt":
            return TextArea(value, id=name, tab_behavior="focus")
        return Input("" if value is None else str(value), id=name, compact=True)

    def _hint(self, name: str) -> Content:
        return Content(RULES[name].expects if name in SAMPLING_NAMES else "")

    def on_mount(self) -> None:
        self.query(Input).first().focus()

    def on_input_submitted(self) -> None:
        self.focus_next()

    def action_save(self) -> None:
        """Dismiss with the changes, or say beside each wrong value what it must be."""
        changes: dict[str, Any] = {}
        wrong: list[str] = []
        for name, value in self._values.items():
            hint = self.query_one(f"#hint-{name}", Label)
            try:
                new = self._read(name)
            except ValueError as error:
                hint.update(Content(str(error)))
                wrong.append(name)
            else:
                hint.update(self._hint(name))
                if new != value:
                    changes[name] = new
            hint.set_class(name in wrong, "-wrong")
        if wrong:
            self.query_one(f"#{wrong[0]}").focus()
        else:
            self.dismiss(changes)

    def _read(self, name: str) -> Any:
        """Raises ValueError for what the settings file could not hold."""
        field = self.query_one(f"#{name}")
        if isinstance(field, TextArea):
            return typed(field.text)
        if isinstance(field, Input):
            text = field.value.strip()
            return None if name == "seed" and not text else RULES[name].parse(text)
        assert isinstance(field, Select)
        return field.value
