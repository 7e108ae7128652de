"""Numbers and rows as commands print them: thousands separators, units, aligned columns within the terminal's width."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

_PREFIXES: Final = ((12, "T"), (9, "G"), (6, "M"), (3, "k"))
_LEAST: Final = 24  # minimum characters of a line


def width() -> int | None:
    """Return the maximum width of a line; None if the output is not a terminal."""
    if not sys.stdout.isatty():
        return None
    return max(_LEAST, shutil.get_terminal_size().columns)


def decimal(value: float, unit: str) -> str:
    """Format a value with three digits and a prefix: "4.09 GFLOP"."""
    for power, prefix in _PREFIXES:
        if value >= 10**power:
            return f"{value / 10**power:.3g} {prefix}{unit}"
    return f"{value:,.0f} {unit}"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Format a count: "1 node", "1,234 nodes". `nouns` is the plural if that is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def shape_text(dims: Iterable[int | None] | None) -> str:
    """Format a shape such as [?, 3, 224, 224], with "?" for each unknown size."""
    return "any rank" if dims is None else f"[{', '.join('?' if size is None else str(size) for size in dims)}]"


def rows(table: Sequence[Sequence[str]], right: Iterable[int] = (), indent: str = "  ") -> Iterator[str]:
    """Yield lines with aligned columns, truncated at the width of the terminal.

    Args:
        table: The cells of each row.
        right: Columns to align on the right, for numbers.
        indent: Text before each line.
    """
    limit = width()
    numbers = set(right)
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))] if table else []
    for row in table:
        cells = [
            cell.rjust(size) if column in numbers else cell.ljust(size)
            for column, (cell, size) in enumerate(zip(row, widths, strict=True))
        ]
        line = (indent + "  ".join(cells)).rstrip()
        # Output into a file or pipe is complete.
        yield line if limit is None or len(line) <= limit else line[: limit - 1] + "…"


def packed(cells: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield names with values, several per line, ordered down the columns as in a listing of files."""
    limit = width() or 100
    names, values = (max((len(cell[i]) for cell in cells), default=0) for i in (0, 1))
    across = max(1, (limit + 1) // (names + values + 4))
    # ⌈cells / columns⌉; each line takes every `height`-th cell.
    height = -(-len(cells) // across)
    for line in range(height):
        shown = [f"{name.ljust(names)} {value.rjust(values)}" for name, value in cells[line::height]]
        yield ("  " + "   ".join(shown)).rstrip()
