"""The live panel: which strategy runs each decode step, why, and how fast."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from itertools import zip_longest

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip

from pkvchat.clean import one_line
from pkvchat.sparkline import sparkline
from pkvchat.steps import StepRecord

from .line_widget import LineWidget
from .palette import Palette, strategy_letter
from .session import Session

_PAD = 2


class Panel(LineWidget):
    """Tall beside the transcript, or one line above the composer (class ``-line``)."""

    def __init__(self, session: Session, palette: Palette) -> None:
        super().__init__(palette, id="panel")
        self._meter = session.meter
        self._engine = session.state
        self._lines: list[Strip] = []

    def on_resize(self) -> None:
        self.update()

    def update(self) -> None:
        """Sum up anew; called at most ten times a second."""
        if not self.display:
            return
        old, width = self._lines, self.size.width
        self._lines = self._line() if self.has_class("-line") else self._tall(width - 2 * _PAD)
        for y, (before, after) in enumerate(zip_longest(old, self._lines)):
            if before != after:
                self.refresh(Region(0, y, width, 1))

    def render_line(self, y: int) -> Strip:
        line = self._lines[y] if y < len(self._lines) else Strip([])
        return self.fitted(Strip([Segment(" " * _PAD), *line]))

    # --- one line -----------------------------------------------------------------------------

    def _line(self) -> list[Strip]:
        palette, meter, last = self.palette, self._meter, self._meter.last
        if last is None:
            return [Strip([Segment("no decode step yet", palette.faint)])]
        rate = f"{meter.now():.1f} tokens/s now, {meter.average:.1f} on average"
        pages = f"pages {last.pages_used}/{last.pages_total}"
        facts = f"   batch {last.batch}   {rate}   {pages}"
        if self.size.width < 90:
            facts = f"  B{last.batch}  {meter.now():.1f} tok/s, avg {meter.average:.1f}  {pages}"
        segments = [*self._strategy(last), Segment(facts, palette.muted)]
        return [Strip([*segments, Segment(f"   {one_line(last.reason)}", palette.faint)])]

    def _strategy(self, record: StepRecord) -> list[Segment]:
        style = self.palette.strategies.get(record.strategy, self.palette.base)
        letter = f" {strategy_letter(record.strategy)} "
        splits = f" ×{record.num_splits}" if record.num_splits > 1 else ""
        return [
            Segment(letter, style + Style(reverse=True, bold=True)),
            Segment(f" {record.strategy}{splits}", style + Style(bold=True)),
        ]

    # --- tall ---------------------------------------------------------------------------------

    def _tall(self, width: int) -> list[Strip]:
        meter, last = self._meter, self._meter.last
        lines = self._engine_lines(width)
        if last is None:
            return [*lines, *self._section("decode"), self._text("no step yet", self.palette.faint)]
        return [
            *lines,
            *self._section("strategy"),
            Strip(self._strategy(last)),
            *(self._text(t, self.palette.muted) for t in _wrapped(last.reason, width, 4)),
            *self._section("last steps"),
            self._step_cells(width),
            self._shares(),
            *self._section(f"speed, {_range(meter.rates)}"),
            self._pair(f"{meter.now():.1f}", "tokens/s now", width),
            self._pair(f"{meter.average:.1f}", "on average", width),
            self._text(sparkline(list(meter.rates), width), self.palette.good),
            *self._section("latency, p50 and p95"),
            *self._latency(width),
            *self._section("batch"),
            *(self._text(line) for line in _wrapped(_batch(last), width, 3)),
            *self._section("pages"),
            self._pages(last, width),
            *self._predictions(last, width),
        ]

    def _engine_lines(self, width: int) -> list[Strip]:
        ready = self._engine.ready
        if ready is None:
            return [self._text("engine", self.palette.faint), self._text("not ready yet")]
        facts = f"{ready.device} · {ready.dtype} · context {ready.context:,}"
        return [
            self._text(one_line(ready.model)[:width], Style(bold=True)),
            *(self._text(line, self.palette.muted) for line in _wrapped(facts, width, 3)),
            self._text(f"policy {self._engine.policy}", self.palette.muted),
        ]

    def _section(self, title: str) -> list[Strip]:
        return [Strip([]), self._text(title, self.palette.faint)]

    def _text(self, text: str, style: Style | None = None) -> Strip:
        return Strip([Segment(text, style or self.palette.base)])

    def _pair(self, value: str, unit: str, width: int) -> Strip:
        return Strip(
            [
                Segment(value.rjust(7), self.palette.base + Style(bold=True)),
                Segment(f" {unit}"[: width - 7], self.palette.muted),
            ]
        )

    def _step_cells(self, width: int) -> Strip:
        """One letter per step, the newest at the right."""
        recent = list(self._meter.recent)[-width:]
        fallback = self.palette.base
        return Strip(
            [
                Segment(
                    strategy_letter(r.strategy), self.palette.strategies.get(r.strategy, fallback)
                )
                for r in recent
            ]
        )

    def _shares(self) -> Strip:
        shares, total = self._meter.shares, self._meter.shares.total()
        text = "   ".join(
            f"{strategy_letter(name)} {100 * count / total:.0f}%"
            for name, count in shares.most_common()
        )
        return self._text(text, self.palette.muted)

    def _latency(self, width: int) -> list[Strip]:
        itl, ttft = self._meter.itl_ms(), self._meter.ttft_s()
        lines = [self._pair(f"{itl[0]:.1f}", f"and {itl[1]:.1f} ms per token", width)]
        if ttft[0]:
            text = f"and {ttft[1]:.2f} s to the first"
            lines.append(self._pair(f"{ttft[0]:.2f}", text, width))
        return lines

    def _pages(self, last: StepRecord, width: int) -> Strip:
        figures = f" {last.pages_used:,} of {last.pages_total:,}"
        cells = max(width - len(figures), 4)
        full = round(cells * last.pages_used / max(last.pages_total, 1))
        return Strip(
            [
                Segment("█" * full, self.palette.assistant),
                Segment("░" * (cells - full), self.palette.faint),
                Segment(figures, self.palette.muted),
            ]
        )

    def _predictions(self, last: StepRecord, width: int) -> list[Strip]:
        if not last.predicted_us:
            return []
        lines = self._section("predicted attention, per layer")
        for name, us in sorted(last.predicted_us.items(), key=lambda item: item[1]):
            style = self.palette.strategies.get(name, self.palette.base)
            chosen = name == last.strategy
            figure = f"{us:,.0f} µs" + (" ◂ ran" if chosen else "")
            lines.append(
                Strip(
                    [
                        Segment(strategy_letter(name) + " ", style + Style(bold=True)),
                        Segment(f"{name:<12}", style if chosen else self.palette.muted),
                        Segment(figure[: width - 14], self.palette.base),
                    ]
                )
            )
        lines.append(self._pair(f"{last.step_ms:.1f}", "ms measured, whole step", width))
        return lines


def _wrapped(text: str, width: int, most: int) -> list[str]:
    return textwrap.wrap(one_line(text), max(width, 8), max_lines=most, placeholder=" …")


def _batch(record: StepRecord) -> str:
    chats = "1 chat" if record.batch == 1 else f"{record.batch} chats"
    return f"{chats} of {' · '.join(f'{n:,}' for n in record.seq_lens)} tokens"


def _range(values: Iterable[float]) -> str:
    rates = list(values)
    return f"{min(rates):.1f} to {max(rates):.1f} per step" if rates else ""
