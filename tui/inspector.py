"""The step inspector: recent decode steps in a table, one of them in full."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from pkvchat.clean import one_line
from pkvchat.counted import counted
from pkvchat.meter import Meter
from pkvchat.steps import StepRecord, StepWriter
from pkvchat.task_summary import task_summary

from .palette import strategy_letter

_REFRESH_S = 0.5
_ROWS = 200
_COLUMNS = (  # which fit in 80
    "step",
    "strategy",
    "batch",
    "longest",
    "step ms",
    "tokens/s",
    "pred. µs",
    "pages",
)


class Inspector(Screen[None]):
    """Follows the newest step until paused, or while the cursor is on an older one."""

    BINDINGS: ClassVar = [
        ("escape,f4,q", "app.pop_screen", "back"),
        ("space", "pause", "pause"),
        ("f", "filter", "filter"),
        ("s", "save", "save"),
    ]

    def __init__(self, meter: Meter, page_size: int) -> None:
        super().__init__()
        self._meter = meter
        self._page_size = page_size
        self._paused = False
        self._strategy = ""  # "" shows all
        self._shown: list[StepRecord] = []

    def compose(self) -> ComposeResult:
        yield Static(id="inspector-head")
        yield DataTable(id="steps", cursor_type="row", zebra_stripes=True)
        with VerticalScroll(id="record"):
            yield Static(id="record-text")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(DataTable).add_columns(*_COLUMNS)
        self.set_interval(_REFRESH_S, self._follow)
        self._follow()
        self.query_one(DataTable).focus()

    def _follow(self) -> None:
        self._refresh_rows()
        self._draw_record()

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
            step, strategy, *figures = _row(record)
            right = (Text(figure, justify="right") for figure in figures)
            table.add_row(Text(step), Text(strategy), *right)
        self._draw_head()

    def _draw_head(self) -> None:
        what = self._strategy or "all strategies"
        at_top = self.query_one(DataTable).cursor_row == 0
        state = "paused" if self._paused else "following" if at_top else "following at the top"
        head = f"  {counted(len(self._shown), 'step')}, {what}, {state}"
        self.query_one("#inspector-head", Static).update(Text(head))

    def on_data_table_row_highlighted(self) -> None:
        self._draw_head()
        self._draw_record()

    def _draw_record(self) -> None:
        row = self.query_one(DataTable).cursor_row
        text = self._in_full(self._shown[row]) if row < len(self._shown) else "no decode step yet"
        self.query_one("#record-text", Static).update(Text(text))

    def _in_full(self, record: StepRecord) -> str:
        lines = [
            f"step {record.step}: {record.strategy}, {counted(record.num_splits, 'split')}, batch "
            f"{record.batch}, {record.step_ms:.3f} ms, {record.tokens_per_s:.1f} tokens/s",
            one_line(record.reason),
            f"lengths  {' · '.join(f'{n:,}' for n in record.seq_lens)}",
            f"tasks    {task_summary(record, self._page_size)}",
            f"pages    {record.pages_used:,} of {record.pages_total:,} used, "
            f"{record.pages_shared:,} of them shared; {self._meter.pages.used:,} used now",
            "",
            f"{'candidate':<14}{'predicted, a layer':>18}{f'batch of {record.batch}, p50':>20}",
        ]
        for name, us in sorted(record.predicted_us.items(), key=lambda item: item[1]):
            took = self._meter.step_ms(name, record.batch)
            measured = f"{took:.2f} ms" if took else "-"
            ran = "  ran" if name == record.strategy else ""
            figures = f"{us:>15,.1f} µs{measured:>20}{ran}"
            lines.append(f"{strategy_letter(name)} {name:<12}{figures}")
        return "\n".join(lines)

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._draw_head()

    def action_filter(self) -> None:
        """Show one strategy after the other, then all again."""
        names = ["", *sorted({record.strategy for record in self._meter.recent})]
        at = names.index(self._strategy) if self._strategy in names else 0
        self._strategy = names[(at + 1) % len(names)]
        self._shown = []
        self._follow()

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
    predicted = record.predicted_us.get(record.strategy)
    splits = f" ×{record.num_splits}" if record.num_splits > 1 else ""
    return (
        str(record.step),
        f"{strategy_letter(record.strategy)} {record.strategy}{splits}",
        str(record.batch),
        f"{max(record.seq_lens, default=0):,}",
        f"{record.step_ms:.2f}",
        f"{record.tokens_per_s:.1f}",
        "-" if predicted is None else f"{predicted:,.0f}",
        f"{record.pages_used:,}",
    )


def _free_name(path: Path) -> Path:
    number, free = 1, path
    while free.exists():
        free = path.with_stem(f"{path.stem}-{number}")
        number += 1
    return free
