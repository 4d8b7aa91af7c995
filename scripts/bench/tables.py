"""Tables and command lines of the benchmarks."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

DatabaseName = Literal["sqlite", "postgres"]
DATABASES: tuple[DatabaseName, ...] = get_args(DatabaseName)


@dataclass(frozen=True)
class Row:
    """One line of a table. `value` is the median if there is a `p95`."""

    database: str
    label: str
    value: float
    p95: float | None = None
    unit: str = ""
    note: str = ""


def get_p50_p95(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile, rounded to hundredths."""
    ordered = sorted(values)
    high = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return round(statistics.median(ordered), 2), round(high, 2)


def make_row(
    database: str, label: str, values: Sequence[float], *, unit: str = "ms", note: str = ""
) -> Row:
    """Return the row of many values; its note is "none" if there are no values."""
    if not values:
        return Row(database, label, 0, None, unit, "none")
    return Row(database, label, *get_p50_p95(values), unit, note)


def print_rows(rows: Sequence[Row], *, as_json: bool) -> None:
    """Print the machine and a table of the rows, or the rows as JSON."""
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print_machine()
    print(f"{'database':<11} {'what':<52} {'value (p50)':>12} {'p95':>9} {'unit':<7} note")
    for row in rows:
        p95 = "" if row.p95 is None else row.p95
        print(
            f"{row.database:<11} {row.label:<52} {row.value:>12} {p95:>9} {row.unit:<7} {row.note}"
        )


def print_machine() -> None:
    """Print the system, the number of cores and the version of Python."""
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")


def print_grid(title: str, rows: Mapping[str, Mapping[str, Any]], *, width: int = 30) -> None:
    """Print figures with the columns of the first row as heads."""
    heads = list(next(iter(rows.values())))
    cells = {head: max(8, len(head) + 2) for head in heads}
    print(f"\n{title:<{width}}" + "".join(f"{head:>{cells[head]}}" for head in heads))
    for label, row in rows.items():
        print(f"{label:<{width}}" + "".join(f"{row[head]:>{cells[head]}}" for head in heads))


def print_markdown(title: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Print figures as a table of Markdown, for the documents."""
    heads = list(next(iter(rows.values())))
    print(f"\n| {' | '.join([title, *heads])} |\n|{' --- |' * (len(heads) + 1)}")
    for label, row in rows.items():
        print(f"| {label} | {' | '.join(str(row[head]) for head in heads)} |")


def new_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows the module's docstring as help, with the option `--json`."""
    parser = argparse.ArgumentParser(
        prog=f"scripts/bench.py {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def add_database_option(parser: argparse.ArgumentParser) -> None:
    """Add `--database`. Without it a benchmark runs on SQLite and on PostgreSQL."""
    parser.add_argument(
        "--database", choices=DATABASES, dest="databases", type=str, action="append"
    )


def list_databases(options: argparse.Namespace) -> Sequence[DatabaseName]:
    """Return the databases that the options ask for."""
    return options.databases or DATABASES
