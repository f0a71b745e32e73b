"""Benchmark rows as llama-bench prints its own: a Markdown table, JSON or CSV."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from .clean import one_line
from .engine.memory import human

Row = dict[str, Any]

_LEAST_WIDTHS = {"policy": 17, "test": 18, "t/s": 18, "bound": 8, "of it": 6, "ratio": 5}


def print_markdown(rows: Iterable[Row]) -> None:
    """llama-bench's columns, the policy and the bound; each row as soon as it is there.

    ratio: to the last of several policies.
    """
    widths: dict[str, int] = {}
    for row in rows:
        cells = {
            "model": one_line(row["model"]),
            "size": human(row["model_size"]),
            "params": f"{row['model_n_params'] / 1e6:.2f} M",
            "backend": row["backend"],
            "threads": str(row["threads"]),
            "policy": row["policy"],
            "batch": str(row["batch"]),
            "test": row["test"],
            "t/s": f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}",
            "bound": f"{row['bound_ts']:.1f}" if row["bound_ts"] else "",
            "of it": f"{row['bound_share']:.1%}" if row["bound_ts"] else "",
        }
        if row["ratio"] is not None:
            cells["ratio"] = f"{row['ratio']:.3f}"
        if not widths:
            widths = {
                name: max(len(name), len(cell), _LEAST_WIDTHS.get(name, 0))
                for name, cell in cells.items()
            }
            _print_cells({name: name for name in cells}, widths)
            print("|" + "|".join(f" {'-' * width}:" for width in widths.values()) + "|")
        _print_cells(cells, widths)


def _print_cells(cells: Mapping[str, str], widths: Mapping[str, int]) -> None:
    print("| " + " | ".join(cells[n].rjust(w) for n, w in widths.items()) + " |", flush=True)


def print_json(rows: Iterable[Row]) -> None:
    print(json.dumps(list(rows), indent=2))


def print_csv(rows: Iterable[Row]) -> None:
    """Lists and tables within a row are written as JSON."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    for number, row in enumerate(rows):
        if number == 0:
            table.writerow(row)
        table.writerow(
            json.dumps(cell) if isinstance(cell, (list, dict)) else cell for cell in row.values()
        )
        sys.stdout.flush()


PRINTERS = {"md": print_markdown, "json": print_json, "csv": print_csv}
