"""The live panel: which strategy runs each decode step, why, how fast, and for whom."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from itertools import zip_longest

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.geometry import Region
from textual.strip import Strip

from pkvchat.clean import one_line
from pkvchat.open_chat import OpenChat, Phase
from pkvchat.sparkline import sparkline
from pkvchat.steps import StepRecord

from .keymap import Keymap
from .line_widget import LineWidget
from .palette import Palette, strategy_letter
from .session import Session

_PAD = 2


class Panel(LineWidget):
    """Tall beside the transcript, or a few lines above the composer (class ``-line``).

    chats: the open ones, the one in view first.
    """

    def __init__(
        self,
        session: Session,
        palette: Palette,
        keymap: Keymap,
        chats: Callable[[], Sequence[OpenChat]],
    ) -> None:
        super().__init__(palette, id="panel")
        self._meter = session.meter
        self._engine = session.state
        self._keymap = keymap
        self._chats = chats
        self._lines: list[Strip] = []

    def on_resize(self) -> None:
        self.update()

    def update(self) -> None:
        """Sum up anew; while answers run, called some five times a second."""
        if not self.display:
            return
        old, width = self._lines, self.size.width
        self._lines = self._few() if self.has_class("-line") else self._tall(width - 2 * _PAD)
        for y, (before, after) in enumerate(zip_longest(old, self._lines)):
            if before != after:
                self.refresh(Region(0, y, width, 1))

    def render_line(self, y: int) -> Strip:
        line = self._lines[y] if y < len(self._lines) else Strip([])
        return self.fitted(Strip([Segment(" " * _PAD), *line]))

    # --- a few lines --------------------------------------------------------------------------

    def _few(self) -> list[Strip]:
        """As many as the style sheet gives; the first says the most."""
        palette, meter, last = self.palette, self._meter, self._meter.last
        if last is None:
            return [self._text("no decode step yet", palette.faint)]
        width = self.size.width - 2 * _PAD
        (itl, itl_95), (ttft, ttft_95) = meter.itl_ms(), meter.ttft_s()
        first = f"first {ttft:.2f} s, p95 {ttft_95:.2f}" if meter.ttfts else "first -"
        speed = (
            f"{meter.now():.1f} tokens/s",
            f"batch {last.batch}",
            f"pages {meter.pages.used:,}/{meter.pages.total:,}",
            f"average {meter.average:.1f}",
        )
        waits = (
            f"next token {itl:.1f} ms, p95 {itl_95:.1f}",
            first,
            self._engine.policy,
        )
        return [
            self._facts(self._strategy(last), speed, width),
            self._facts(self._step_cells(width // 4), waits, width),
            self._text(one_line(last.reason), palette.faint),
        ]

    def _facts(self, start: list[Segment], facts: Sequence[str], width: int) -> Strip:
        """As many facts behind ``start`` as there is room for, none of them cut."""
        text = ""
        room = width - Segment.get_line_length(start)
        for fact in facts:
            if cell_len(text) + 2 + cell_len(fact) <= room:
                text += f"  {fact}"
        return Strip([*start, Segment(text, self.palette.muted)])

    # --- tall ---------------------------------------------------------------------------------

    def _tall(self, width: int) -> list[Strip]:
        """Sparklines give way where there is no room for all, and then gaps, from the end on."""
        room = self.size.height - 1
        lines = self._all(width, sparklines=True)
        if sum(line.cell_length > 0 for line in lines) > room:
            lines = self._all(width, sparklines=False)
        gaps = [y for y, line in enumerate(lines) if not line.cell_length]
        for y in gaps[::-1][: max(len(lines) - room, 0)]:
            del lines[y]
        return lines

    def _all(self, width: int, *, sparklines: bool) -> list[Strip]:
        last = self._meter.last
        decode = [self._text("no decode step yet")]
        if last:
            decode = [
                *self._about_step(last, width),
                *self._candidates(last, width),
                *self._speed(width if sparklines else 0),
                *self._pages(width),
            ]
        return [*self._about_engine(width), *decode, *self._about_chats(width)]

    def _about_step(self, last: StepRecord, width: int) -> list[Strip]:
        return [
            *self._section("strategy"),
            Strip(self._strategy(last)),
            *(self._text(t, self.palette.muted) for t in _wrapped(last.reason, width, 3)),
            Strip(self._step_cells(width)),
            self._shares(),
        ]

    def _speed(self, width: int) -> list[Strip]:
        """Each figure over a sparkline of at most ``width`` cells."""
        meter = self._meter
        (itl, itl_95), (ttft, ttft_95) = meter.itl_ms(), meter.ttft_s()
        first = (f"{ttft:.2f} s", f"p95 {ttft_95:.2f}") if meter.ttfts else ("-", "")
        times = [record.step_ms for record in meter.recent]
        figures = (
            ("tokens/s", f"{meter.now():.1f}", f"avg {meter.average:.1f}", meter.rates),
            ("next token", f"{itl:.1f} ms", f"p95 {itl_95:.1f}", times),
            ("first token", *first, meter.ttfts),
        )
        lines = [Strip([])]
        for name, now, beside, values in figures:
            lines.append(
                Strip(
                    [
                        Segment(f"{name:<12}", self.palette.faint),
                        Segment(f"{now:>7}", self.palette.base + Style(bold=True)),
                        Segment(f"  {beside}", self.palette.muted),
                    ]
                )
            )
            if width and values:
                lines.append(self._text(sparkline(list(values), width), self.palette.good))
        return lines

    def _about_engine(self, width: int) -> list[Strip]:
        ready = self._engine.ready
        if self._engine.dead:
            line = f"the engine ended; {self._keymap.shown('retry')} restarts it"
            return [self._text(line, self.palette.error)]
        if ready is None:
            return [self._text("the engine is not ready yet", self.palette.faint)]
        key = self._keymap.shown("policy")
        facts = f"{ready.device} · {ready.dtype} · context {ready.context:,}"
        return [
            self._text(one_line(ready.model)[:width], Style(bold=True)),
            *(self._text(line, self.palette.muted) for line in _wrapped(facts, width, 2)),
            self._ends(f"policy {self._engine.policy}", f"{key} changes it", width),
        ]

    def _strategy(self, record: StepRecord) -> list[Segment]:
        style = self.palette.strategies.get(record.strategy, self.palette.base)
        letter = f" {strategy_letter(record.strategy)} "
        splits = f" ×{record.num_splits}" if record.num_splits > 1 else ""
        return [
            Segment(letter, style + Style(reverse=True, bold=True)),
            Segment(f" {record.strategy}{splits}", style + Style(bold=True)),
        ]

    def _step_cells(self, count: int) -> list[Segment]:
        """A letter for each of the last ``count`` steps, the newest at the right."""
        styles, fallback = self.palette.strategies, self.palette.base
        return [
            Segment(strategy_letter(r.strategy), styles.get(r.strategy, fallback))
            for r in list(self._meter.recent)[-count:]
        ]

    def _shares(self) -> Strip:
        shares, total = self._meter.shares, self._meter.shares.total()
        text = "   ".join(
            f"{strategy_letter(name)} {count / total:.0%}" for name, count in shares.most_common()
        )
        return self._text(text, self.palette.muted)

    def _candidates(self, last: StepRecord, width: int) -> list[Strip]:
        """What the policy predicted for each, and how long such batches took with it of late."""
        if not last.predicted_us:
            return []
        lines = [
            Strip([]),
            self._text(f"{'attention, predicted':<22}step took", self.palette.faint),
        ]
        for name, us in sorted(last.predicted_us.items(), key=lambda item: item[1]):
            style = self.palette.strategies.get(name, self.palette.base)
            ran = name == last.strategy
            took = self._meter.step_ms(name, last.batch)
            figures = f"{us:>6,.0f} µs {f'{took:.1f} ms' if took else '-':>9}"
            lines.append(
                Strip(
                    [
                        Segment(strategy_letter(name) + " ", style + Style(bold=True)),
                        Segment(f"{name:<11}", style if ran else self.palette.muted),
                        Segment(figures[: width - 13], self.palette.base),
                    ]
                )
            )
        return lines

    def _pages(self, width: int) -> list[Strip]:
        """Pages that one chat holds, those that several share, and the free ones."""
        pages = self._meter.pages
        total = max(pages.total, 1)
        shared = round(width * pages.shared / total)
        used = max(round(width * pages.used / total) - shared, 0)
        bar = [
            Segment("▓" * shared, self.palette.user),
            Segment("█" * used, self.palette.assistant),
            Segment("░" * (width - shared - used), self.palette.faint),
        ]
        free = pages.total - pages.used
        text = f"{pages.used:,} used, {pages.shared:,} shared, {free:,} free"
        return [
            *self._section("KV pages"),
            self._text(text[:width], self.palette.muted),
            Strip(bar),
        ]

    # --- chats --------------------------------------------------------------------------------

    def _about_chats(self, width: int) -> list[Strip]:
        """The chat in view and those that are answered."""
        in_view, *others = self._chats()
        chats = [in_view, *(chat for chat in others if chat.busy)]
        lines = [line for chat in chats for line in self._chat(chat, width)]
        last = self._meter.last
        title = f"batch of {last.batch}" if last and any(c.busy for c in chats) else "chats"
        return [*self._section(title), *lines]

    def _chat(self, chat: OpenChat, width: int) -> list[Strip]:
        limit = f" of {self._engine.ready.context:,}" if self._engine.ready else ""
        known = chat.context_tokens or not chat.chat.messages
        used = f" {chat.context_tokens:,}{limit}" if known else f" -{limit}"
        name = Text(one_line(chat.chat.name))
        name.truncate(width - cell_len(used), overflow="ellipsis", pad=True)
        line = Strip([Segment(name.plain, self.palette.base), Segment(used, self.palette.muted)])
        doing = _doing(chat)
        return [line, self._text(f"  {doing}"[:width], self.palette.good)] if doing else [line]

    # --- pieces -------------------------------------------------------------------------------

    def _section(self, title: str) -> list[Strip]:
        return [Strip([]), self._text(title, self.palette.faint)]

    def _text(self, text: str, style: Style | None = None) -> Strip:
        return Strip([Segment(text, style or self.palette.base)])

    def _ends(self, left: str, right: str, width: int) -> Strip:
        """A text at each end of the line, the right one where there is room."""
        gap = width - cell_len(left) - cell_len(right)
        rest = [Segment(" " * gap + right, self.palette.faint)] if gap > 1 else []
        return Strip([Segment(left[:width], self.palette.muted), *rest])


def _doing(chat: OpenChat) -> str:
    if chat.phase is Phase.WAITING:
        return "waits"
    if chat.phase is Phase.DECODE:
        return f"{chat.tokens_per_s:.1f} tokens/s"
    if chat.phase is Phase.PREFILL:
        rate, left = chat.prefill_pace()
        pace = f", {rate:,.0f}/s, {left:.0f} s" if rate else ""
        return f"reads {chat.prefill_done:,}/{chat.prefill_total:,}{pace}"
    return ""


def _wrapped(text: str, width: int, most: int) -> list[str]:
    return textwrap.wrap(one_line(text), max(width, 8), max_lines=most, placeholder=" …")
