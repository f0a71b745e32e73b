"""The line of tabs at the top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from .clean import one_line
from .palette import Palette
from .tab import Tab

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_UNREAD = "●"
_MAX_TITLE = 24
_MIN_TITLE = 6


class TabStrip(Widget):
    """One cell run per tab: number, title, a spinner while it answers, a dot for unread text."""

    @dataclass
    class Picked(Message):
        index: int

    def __init__(self, palette: Palette) -> None:
        super().__init__(id="tabs")
        self.palette = palette
        self._tabs: Sequence[Tab] = ()
        self._active = 0
        self._frame = 0
        self._spans: list[tuple[int, int, int]] = []  # tab index, first and last cell

    def show(self, tabs: Sequence[Tab], active: int) -> None:
        self._tabs, self._active = tabs, active
        self.refresh()

    def spin(self) -> None:
        """Turn the spinners one step."""
        self._frame += 1
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        base = self.rich_style
        labels = self._labels(width)
        self._spans = []
        segments: list[Segment] = []
        position = 0
        for index in self._visible(labels, width):
            text, style = labels[index], self._style(index)
            segments.append(Segment(text, style))
            self._spans.append((index, position, position + cell_len(text)))
            position += cell_len(text)
        hidden = len(labels) - len(self._spans)
        if hidden:
            segments.append(Segment(f" +{hidden}", self.palette.muted))
        return Strip(segments).apply_style(base).crop_extend(0, width, base)

    def _labels(self, width: int) -> list[str]:
        fair = width // max(len(self._tabs), 1) - 6
        room = max(min(_MAX_TITLE, fair), _MIN_TITLE)
        return [self._label(index, tab, room) for index, tab in enumerate(self._tabs)]

    def _label(self, index: int, tab: Tab, room: int) -> str:
        title = one_line(tab.chat.name)
        if cell_len(title) > room:
            while cell_len(title) > room - 1:
                title = title[:-1]
            title += "…"
        if tab.busy:
            mark = SPINNER[self._frame % len(SPINNER)] + " "
        else:
            mark = _UNREAD + " " if tab.unread else ""
        active = "▎" if index == self._active else " "
        return f"{active}{index + 1} {mark}{title} "

    def _style(self, index: int) -> Style:
        if index == self._active:
            return self.palette.base + self.palette.selected + Style(bold=True)
        return self.palette.base if self._tabs[index].unread else self.palette.muted

    def _visible(self, labels: list[str], width: int) -> range:
        """The tabs that fit, the active one among them."""
        room = width - 4
        first, end, used = self._active, self._active, 0
        while end < len(labels) and used + cell_len(labels[end]) <= room:
            used += cell_len(labels[end])
            end += 1
        while first and used + cell_len(labels[first - 1]) <= room:
            first -= 1
            used += cell_len(labels[first])
        return range(first, max(end, first + 1))

    def on_click(self, event: events.Click) -> None:
        for index, start, end in self._spans:
            if start <= event.x < end:
                self.post_message(self.Picked(index))
