"""A chat's messages, drawn line by line: only those near the view are ever rendered."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from pkvchat import chats

from .markdown import MarkdownRenderer
from .palette import Palette
from .turn import Turn

_KEPT_TURNS = 200  # rendered turns that are remembered, over all chats
_DRAWN_LINES = 4000  # remembered as drawn
_BLANK = Strip([])
_MARGIN = 2  # cells left and right of the text
_MAX_TEXT_WIDTH = 100  # longer lines are hard to read


class Transcript(ScrollView, can_focus=True):
    """Shows one chat at a time and follows its end until the reader scrolls away.

    The view holds a window of messages, ``_first`` to ``_last``; it grows when the reader comes
    near its edge, and lines outside say how much more there is.
    """

    BINDINGS: ClassVar = [
        ("up,k", "previous_message", "previous message"),
        ("down,j", "next_message", "next message"),
        ("left", "app.command('previous_answer')", "previous answer"),
        ("right", "app.command('next_answer')", "next answer"),
        ("c", "app.command('copy_message')", "copy"),
        ("b", "app.command('copy_code')", "copy code"),
        ("e", "app.command('edit')", "edit"),
        ("f", "app.command('fork_chat')", "fork"),
        ("enter,tab", "app.command('stop')", "back"),
    ]

    class CursorMoved(Message):
        """The cursor is on another message, or gone."""

    def __init__(
        self, chat: chats.Chat, palette: Palette, welcome: Sequence[str], thoughts_key: str
    ) -> None:
        """welcome: what an empty chat says. thoughts_key: the one that unfolds reasoning."""
        super().__init__(id="transcript")
        self._welcome = welcome
        self._thoughts_key = thoughts_key
        self.speaker = "Assistant"
        self.raw = False  # exact text in place of drawn Markdown
        self.thoughts = False  # reasoning unfolded
        self.cursor: int | None = None  # index of the chosen message, while the keys are here
        self._chat = chat
        self._renderer = MarkdownRenderer(palette)
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        self._first = self._last = 0
        self._lines: list[Strip] = []
        self._drawn: dict[int, tuple[Strip, Strip]] = {}  # by line: what it is, how it was drawn
        self._starts: list[int] = []  # line where each message of the window begins
        self._following = True
        self._places: dict[str, tuple[int, int, float]] = {}  # chats left while scrolled up

    # --- what is shown ------------------------------------------------------------------------

    def show(self, chat: chats.Chat) -> None:
        """Turn to ``chat``, where the reader left it."""
        if self._following:
            self._places.pop(self._chat.id, None)
        else:
            self._places[self._chat.id] = (self._first, self._last, self.scroll_y)
        self._chat = chat
        self.cursor = None
        self.screen.clear_selection()
        place = self._places.get(chat.id)
        self._following = place is None
        if place is None:
            self._window_at_end()
        else:
            self._first, self._last, line = place
            self._rebuild()
            self.scroll_to(y=line, animate=False)

    def name_speaker(self, name: str) -> None:
        if name != self.speaker:
            self.speaker = name
            self._rerender()

    def show_raw(self, raw: bool) -> None:
        self.raw = raw
        self._rerender()

    def show_thoughts(self, thoughts: bool) -> None:
        self.thoughts = thoughts
        self._rerender()

    def recolour(self, palette: Palette) -> None:
        self._renderer = MarkdownRenderer(palette)
        self._rerender()

    def update(self) -> None:
        """Draw what changed in the chat."""
        messages = self._chat.messages
        if self._following or self._last > len(messages):
            self._last = len(messages)
            self._first = min(self._first, self._last)
        self._rebuild()

    def _rerender(self) -> None:
        self._turns.clear()
        if self._following:
            self._window_at_end()
        else:
            self._rebuild()

    def _window_at_end(self) -> None:
        self._last = self._first = len(self._chat.messages)
        self._following = True
        self._grow_up()
        self._rebuild()

    def _grow_up(self) -> int:
        """Take in earlier messages, about two screens of them; returns the lines that adds."""
        added = 0
        while self._first and added < 2 * max(self.size.height, 20):
            self._first -= 1
            added += len(self._turn(self._chat.messages[self._first]).lines)
        return added

    def _grow_down(self) -> None:
        added = 0
        while self._last < len(self._chat.messages) and added < 2 * max(self.size.height, 20):
            added += len(self._turn(self._chat.messages[self._last]).lines)
            self._last += 1

    # --- lines --------------------------------------------------------------------------------

    @property
    def _text_width(self) -> int:
        room = self.size.width - 2 * _MARGIN - 1  # 1 for the scrollbar, there or not
        return max(min(room, _MAX_TEXT_WIDTH), 10)

    def _turn(self, message: chats.Message) -> Turn:
        turn = self._turns.get(message.id)
        if turn is None:
            turn = Turn(
                message,
                self.speaker,
                self._text_width,
                self._renderer,
                raw=self.raw,
                thoughts=self.thoughts,
                thoughts_key=self._thoughts_key,
            )
            self._turns[message.id] = turn
            if len(self._turns) > max(_KEPT_TURNS, 2 * (self._last - self._first)):
                self._turns.popitem(last=False)
        turn.refresh()
        return turn

    def _rebuild(self) -> None:
        """Bring the window's lines up to date, redrawing from the first that changed."""
        old = self._lines
        lines, starts = self._edge(self._first, "↑", "earlier"), []
        if not self._chat.messages:
            muted, text = self._renderer.palette.muted, "\n".join(self._welcome)
            lines = [s.apply_style(muted) for s in self._renderer.text(text, self._text_width)]
        for message in self._chat.messages[self._first : self._last]:
            starts.append(len(lines))
            lines += self._turn(message).lines
        lines += self._edge(len(self._chat.messages) - self._last, "↓", "later")
        self._lines, self._starts = lines, starts
        if len(lines) != len(old):
            self.virtual_size = Size(self.size.width, len(lines))
        if self._following:
            self.scroll_end(animate=False, immediate=True, force=True)
        self._refresh_changed(old)

    def _refresh_changed(self, old: list[Strip]) -> None:
        """Redraw the view from the first line that differs; a scroll redraws it all anyway."""
        width, height = self.size
        for row in range(height):
            y = self.scroll_offset.y + row
            before = old[y] if y < len(old) else None
            after = self._lines[y] if y < len(self._lines) else None
            if before is not after and before != after:
                self.refresh(Region(0, row, width, height - row))
                return

    def _edge(self, count: int, arrow: str, where: str) -> list[Strip]:
        if not count:
            return []
        text = f"  {arrow} {count} {where} messages"
        return [Strip([Segment(text, self._renderer.palette.faint)]), _BLANK]

    def render_line(self, y: int) -> Strip:
        y += self.scroll_offset.y
        line = self._lines[y] if y < len(self._lines) else _BLANK
        if self.cursor is not None or self.text_selection is not None:
            return self._finished(y, line)
        drawn = self._drawn.get(y)
        if drawn is None or drawn[0] is not line:
            if len(self._drawn) > _DRAWN_LINES:
                self._drawn.clear()
            self._drawn[y] = drawn = (line, self._finished(y, line))
        return drawn[1]

    def _finished(self, y: int, line: Strip) -> Strip:
        """A line with its margin, the cursor and the selection, as wide as the view."""
        margin = Segment(" " * _MARGIN)
        marked = y < len(self._lines) and self._message_at(y) == self.cursor
        if self.cursor is not None and marked:
            margin = Segment("▐".ljust(_MARGIN), self._renderer.palette.assistant)
        strip = Strip([margin, *line])
        if (selection := self.text_selection) and (span := selection.get_span(y)):
            style = self.screen.get_component_rich_style("screen--selection")
            strip = _highlight(strip, span, style)
        base, width = self.rich_style, self.size.width
        return strip.apply_style(base).crop_extend(0, width, base).apply_offsets(0, y)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._drawn.clear()

    def get_selection(self, selection: Selection) -> tuple[str, str]:
        text = "\n".join((" " * _MARGIN + strip.text).rstrip() for strip in self._lines)
        return selection.extract(text), "\n"

    # --- the cursor over messages -------------------------------------------------------------

    def _message_at(self, y: int) -> int:
        return self._first + bisect_right(self._starts, y) - 1

    def on_focus(self) -> None:
        self._set_cursor(len(self._chat.messages) - 1)

    def on_blur(self) -> None:
        self.cursor = None
        self.refresh()
        self.post_message(self.CursorMoved())

    def action_previous_message(self) -> None:
        self._set_cursor((self.cursor or 0) - 1)

    def action_next_message(self) -> None:
        if self.cursor is not None:
            self._set_cursor(self.cursor + 1)

    def _set_cursor(self, index: int) -> None:
        """Choose a message and bring it into view."""
        if not self._chat.messages:
            return
        index = min(max(index, 0), len(self._chat.messages) - 1)
        self.cursor = index
        self.post_message(self.CursorMoved())
        if index < self._first:
            self._grow_up()
            self._rebuild()
        if index - self._first < len(self._starts):
            start = self._starts[index - self._first]
            end = [*self._starts, len(self._lines)][index - self._first + 1]
            height = self.size.height
            if start < self.scroll_offset.y or end - start >= height:
                self.scroll_to(y=start, animate=False, immediate=True, force=True)
            elif end > self.scroll_offset.y + height:
                self.scroll_to(y=end - height, animate=False, immediate=True, force=True)
        self.refresh()

    # --- scrolling ----------------------------------------------------------------------------

    def on_resize(self, event: events.Resize) -> None:
        self._drawn.clear()
        if any(turn.width != self._text_width for turn in self._turns.values()):
            self._rerender()
        else:
            self._rebuild()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) == round(new_value) or not self.is_mounted:
            return
        at_end = self.is_vertical_scroll_end
        self._following = at_end and self._last == len(self._chat.messages)
        if at_end and not self._following:
            self.call_later(self._extend_down)
        if new_value < old_value and new_value < self.size.height and self._first:
            self.call_later(self._extend_up)

    def _extend_up(self) -> None:
        if not self._first or self.scroll_y >= self.size.height:
            return
        before = len(self._lines)
        self._grow_up()
        self._rebuild()
        self.scroll_to(y=self.scroll_y + len(self._lines) - before, animate=False, immediate=True)

    def _extend_down(self) -> None:
        self._grow_down()
        self._rebuild()

    def action_scroll_home(self) -> None:
        """The first message, without rendering all between."""
        self._first = self._last = 0
        self._following = False
        self._grow_down()
        self._rebuild()
        self.scroll_to(y=0, animate=False)

    def action_scroll_end(self) -> None:
        self._window_at_end()


def _highlight(strip: Strip, span: tuple[int, int], style: Style) -> Strip:
    """``strip`` with ``style`` on the characters of ``span``: start, end (-1: the line's end)."""
    start, end = span
    length = len(strip.text)
    end = length if end == -1 else min(end, length)
    first, last = (strip.index_to_cell_position(min(i, length)) for i in (start, end))
    parts: Iterable[Segment] = [
        *strip.crop(0, first),
        *(Segment(s.text, (s.style or Style()) + style) for s in strip.crop(first, last)),
        *strip.crop(last),
    ]
    return Strip(parts)
