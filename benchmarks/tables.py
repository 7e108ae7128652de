"""Rows of benchmarks: one form for all programs, printed as Markdown, or as JSON for `python -m benchmarks`.

Targets are for maintainers: they are stored with the rows, and shown only with `--targets`.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

__all__ = [
    "BASELINE",
    "Cell",
    "Printer",
    "Quantity",
    "Row",
    "Table",
    "Target",
    "beside",
    "markdown",
    "program",
    "read",
    "seconds",
]

BASELINE: Final = "TensorFlow, or other"  # a column whose rows name what they are compared with
_NONE: Final = "—"
_RATIO: Final = "ratio"
_OURS: Final = "aioflow"
_SCALES: Final = ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))


class Quantity(NamedTuple):
    """A measured number.

    Attributes:
        value: The number.
        unit: Its unit. Seconds ("s", "s each") are printed with a prefix.
        note: Text in brackets after it.
    """

    value: float
    unit: str = ""
    note: str = ""

    def __str__(self) -> str:
        value, unit = self.value, self.unit
        first, _, rest = unit.partition(" ")
        if first == "s":
            scale, first = next(
                ((s, n) for s, n in reversed(_SCALES) if abs(value) >= s), _SCALES[-1 if not value else 0]
            )
            value, unit = value / scale, f"{first} {rest}".rstrip()
        return f"{_digits(value)} {unit}".rstrip() + (f" ({self.note})" if self.note else "")


def _digits(value: float) -> str:
    """Return the number with three significant digits, but three decimals at most, and all digits before the point."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.{min(3, max(0, 2 - math.floor(math.log10(abs(value)))))}f}"


def seconds(value: float, note: str = "") -> Quantity:
    """Return a quantity of seconds."""
    return Quantity(value, "s", note)


class Target(NamedTuple):
    """The aim for a column of a row: `least` ≤ value ≤ `most`."""

    most: float = math.inf
    least: float = -math.inf
    column: str = _RATIO

    def text(self, unit: str) -> str:
        """Return the aim for a quantity in this unit."""
        limits = {"≥ ": self.least, "≤ ": self.most}
        return ", ".join(f"{sign}{Quantity(value, unit)}" for sign, value in limits.items() if math.isfinite(value))


Cell: TypeAlias = Quantity | str


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table.

    Attributes:
        case: What was measured.
        cells: Columns and their values.
        targets: The aims, if there are any.
    """

    case: str
    cells: Mapping[str, Cell]
    targets: tuple[Target, ...] = ()

    def value(self, column: str) -> float | None:
        """Return the number in a column, if there is one."""
        cell = self.cells.get(column)
        return cell.value if isinstance(cell, Quantity) else None

    @property
    def is_reached(self) -> bool | None:
        """True if all targets are reached; None without a target."""
        values = [(each, self.value(each.column)) for each in self.targets]
        return all(v is not None and each.least <= v <= each.most for each, v in values) if values else None

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        cells = {name: cell if isinstance(cell, str) else _without(cell, "") for name, cell in self.cells.items()}
        targets = [_without(each, math.inf, -math.inf) for each in self.targets]
        return {"case": self.case, "cells": cells, **({"targets": targets} if targets else {})}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Row:
        """Return the row that `to_json` wrote."""
        cells = {k: v if isinstance(v, str) else Quantity(**v) for k, v in found["cells"].items()}
        return cls(found["case"], cells, tuple(Target(**each) for each in found.get("targets", ())))


def _without(values: Quantity | Target, *defaults: object) -> dict[str, Any]:
    return {name: value for name, value in values._asdict().items() if value not in defaults}


@dataclass(slots=True)
class Table:
    """The output of a program: its rows, and paragraphs above them."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def beside(
    case: str,
    ours: Quantity,
    theirs: Quantity | None = None,
    target: Target | None = None,
    *,
    other: str = "TensorFlow",
    ratio: float | None = None,
) -> Row:
    """Return the row of a case that was measured with another system, too.

    Args:
        case: What was measured.
        ours: aioflow's result.
        theirs: The result of the other system.
        target: The aim, for the ratio by default.
        other: Name of the other system, and its column.
        ratio: The ratio, if it is not ours / theirs.
    """
    if ratio is None and theirs is not None:
        ratio = ours.value / theirs.value
    cells: dict[str, Cell] = {other: theirs or _NONE, _OURS: ours}
    return Row(case, cells | {_RATIO: _NONE if ratio is None else Quantity(ratio)}, (target,) if target else ())


def markdown(rows: Sequence[Row], targets: bool = False) -> str:
    """Return the rows as tables in Markdown: a new one where the columns change. `targets` adds the aims."""
    return "\n".join(_lines(rows, targets))


def _lines(rows: Iterable[Row], targets: bool) -> Iterator[str]:
    columns: tuple[str, ...] = ()
    for row in rows:
        if tuple(row.cells) != columns:
            if columns:
                yield ""
            columns = tuple(row.cells)
            shown = ["", *columns, *(["target", "reached"] if targets else [])]
            yield f"| {' | '.join(shown)} |"
            yield "|---" * len(shown) + "|"
        cells = [row.case, *map(str, row.cells.values()), *(_verdict(row) if targets else ())]
        yield f"| {' | '.join(cells)} |"


def _verdict(row: Row) -> tuple[str, str]:
    aims = []
    for target in row.targets:
        cell = row.cells.get(target.column)
        aims.append(f"{target.column} {target.text(cell.unit if isinstance(cell, Quantity) else '')}")
    return ", ".join(aims) or _NONE, {True: "yes", False: "**no**", None: _NONE}[row.is_reached]


class Printer:
    """Prints rows and notes as they are measured, and collects them.

    Args:
        options: The options of `add_options`.
    """

    def __init__(self, options: Namespace) -> None:
        self.table = Table()
        self._json, self._targets = options.json, options.targets
        self._columns: tuple[str, ...] = ()

    @staticmethod
    def add_options(parser: ArgumentParser) -> None:
        """Add the options of a program that prints rows."""
        parser.add_argument("--targets", action="store_true", help="show the targets, and if they are reached")
        parser.add_argument("--json", action="store_true", help=SUPPRESS)  # for `python -m benchmarks`

    def note(self, text: str) -> None:
        """Print a paragraph."""
        self.table.notes.append(text)
        print(json.dumps({"note": text}) if self._json else f"{text}\n", flush=True)

    def row(self, row: Row) -> None:
        """Print a row, with the head of the table before the first one."""
        self.table.rows.append(row)
        lines = list(_lines([row], self._targets))
        if tuple(row.cells) == self._columns:
            lines = lines[2:]
        elif self._columns:
            lines.insert(0, "")
        self._columns = tuple(row.cells)
        print(json.dumps(row.to_json()) if self._json else "\n".join(lines), flush=True)

    def rows(self, measures: Iterable[Callable[[], Row]]) -> int:
        """Print the row of each measurement. Return 1 if any fails, which does not end the others."""
        status = 0
        for measure in measures:
            try:
                self.row(measure())
            except Exception:  # of any program; the others are measured all the same
                traceback.print_exc()
                status = 1
        return status


def read(line: str) -> Row | str | None:
    """Return the row or note in a line that a program printed with `--json`; None for other lines, such as logs."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    return Row.from_json(found) if "case" in found else found.get("note")


def program(name: str, about: str | None, measures: Iterable[Callable[[], Row]]) -> None:
    """Run a program that only prints rows, and exit."""
    parser = ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    Printer.add_options(parser)
    sys.exit(Printer(parser.parse_args()).rows(measures))
