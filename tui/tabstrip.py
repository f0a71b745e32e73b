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

from pkvchat.clean import one_line
from pkvchat.open_chat import OpenChat

from .line_widget import LineWidget
from .palette import Palette

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_UNREAD = "●"
_MAX_TITLE = 24
_MIN_TITLE = 6


class TabStrip(LineWidget):
    """One cell run per tab: number, title, a spinner while it answers, a dot for unread text."""

    @dataclass
    class Picked(Message):
        index: int

    def __init__(self, palette: Palette) -> None:
        super().__init__(palette, id="tabs")
        self._tabs: Sequence[OpenChat] = ()
        self._active = 0
        self._frame = 0
        self._drawn: object = None
        self._spans: list[tuple[int, int, int]] = []  # tab index, first and last cell

    def show(self, tabs: Sequence[OpenChat], active: int) -> None:
        """Draw ``tabs``; spinners turn one step with each call."""
        self._tabs, self._active = tabs, active
        self._frame += 1
        drawn = (active, [(tab.chat.name, tab.unread, tab.busy and self._frame) for tab in tabs])
        if drawn != self._drawn:
            self._drawn = drawn
            self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
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
        return self.fitted(Strip(segments))

    def _labels(self, width: int) -> list[str]:
        fair = width // max(len(self._tabs), 1) - 6
        room = max(min(_MAX_TITLE, fair), _MIN_TITLE)
        return [self._label(index, tab, room) for index, tab in enumerate(self._tabs)]

    def _label(self, index: int, tab: OpenChat, room: int) -> str:
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
        return range(first, min(max(end, first + 1), len(labels)))

    def on_click(self, event: events.Click) -> None:
        for index, start, end in self._spans:
            if start <= event.x < end:
                self.post_message(self.Picked(index))
