"""The step inspector: recent decode steps in a table, one of them in full."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Static

from pkvchat.clean import one_line
from pkvchat.meter import Meter
from pkvchat.steps import StepRecord, StepWriter

from .palette import strategy_letter

_REFRESH_S = 0.5
_ROWS = 200
_COLUMNS = ("step", "strategy", "splits", "batch", "longest", "step ms", "tokens/s", "pages")


class Inspector(Screen[None]):
    """Follows the newest step until paused, or while the cursor is on an older one."""

    BINDINGS: ClassVar = [
        ("escape,f4,q", "app.pop_screen", "back"),
        ("space", "pause", "pause"),
        ("f", "filter", "filter by strategy"),
        ("s", "save", "save as JSON lines"),
    ]

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter
        self._paused = False
        self._strategy = ""  # "" shows all
        self._shown: list[StepRecord] = []

    def compose(self) -> ComposeResult:
        yield Static(id="inspector-head")
        yield DataTable(id="steps", cursor_type="row", zebra_stripes=True)
        with VerticalScroll(id="record"):
            yield Static(id="record-text")

    def on_mount(self) -> None:
        self.query_one(DataTable).add_columns(*_COLUMNS)
        self.set_interval(_REFRESH_S, self._refresh_rows)
        self._refresh_rows()
        self.query_one(DataTable).focus()

    def _refresh_rows(self) -> None:
        table = self.query_one(DataTable)
        if self._shown and (self._paused or table.cursor_row > 0):
            return  # someone reads
        records = [r for r in self._meter.recent if self._strategy in ("", r.strategy)]
        records = records[: -_ROWS - 1 : -1]
        if records == self._shown and records:
            return
        self._shown = records
        table.clear()
        for record in records:
            table.add_row(*(Text(cell) for cell in _row(record)))
        self._draw_head()
        self._draw_record()

    def _draw_head(self) -> None:
        what = self._strategy or "all strategies"
        state = "paused" if self._paused else "following"
        keys = "space pause · f filter · s save · Esc back"
        head = f" {len(self._shown)} steps, {what}, {state}   {keys}"
        self.query_one("#inspector-head", Static).update(Text(head))

    def on_data_table_row_highlighted(self) -> None:
        self._draw_record()

    def _draw_record(self) -> None:
        row = self.query_one(DataTable).cursor_row
        text = _in_full(self._shown[row]) if row < len(self._shown) else "no decode step yet"
        self.query_one("#record-text", Static).update(Text(text))

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._draw_head()

    def action_filter(self) -> None:
        """Show one strategy after the other, then all again."""
        names = ["", *sorted({record.strategy for record in self._meter.recent})]
        at = names.index(self._strategy) if self._strategy in names else 0
        self._strategy = names[(at + 1) % len(names)]
        self._shown = []
        self._refresh_rows()

    def action_save(self) -> None:
        """The steps shown, oldest first, to a file of its own here."""
        path = _free_name(Path("steps.jsonl"))
        try:
            writer = StepWriter(str(path))
            for record in reversed(self._shown):
                writer.write(record)
            writer.close()
        except OSError as error:
            self.notify(f"Cannot write {path}: {error.strerror}", severity="error", markup=False)
        else:
            self.notify(f"{len(self._shown)} steps saved in {path}", markup=False)


def _row(record: StepRecord) -> tuple[str, ...]:
    return (
        str(record.step),
        f"{strategy_letter(record.strategy)} {record.strategy}",
        str(record.num_splits),
        str(record.batch),
        f"{max(record.seq_lens, default=0):,}",
        f"{record.step_ms:.2f}",
        f"{record.tokens_per_s:.1f}",
        f"{record.pages_used:,}/{record.pages_total:,}",
    )


def _in_full(record: StepRecord) -> str:
    predicted = sorted(record.predicted_us.items(), key=lambda item: item[1])
    lines = [
        f"step {record.step}: {record.strategy}, {record.num_splits} splits",
        one_line(record.reason),
        "lengths: " + ", ".join(f"{n:,}" for n in record.seq_lens),
        f"measured: {record.step_ms:.3f} ms for the whole step",
        "predicted attention per layer:",
        *(f"  {strategy_letter(name)} {name:<12} {us:12,.1f} µs" for name, us in predicted),
    ]
    return "\n".join(lines)


def _free_name(path: Path) -> Path:
    number, free = 1, path
    while free.exists():
        free = path.with_stem(f"{path.stem}-{number}")
        number += 1
    return free
