"""How commands show numbers and rows: thousands separated, in units, in columns, and no wider than the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

__all__ = ["decimal", "packed", "plural", "rows", "shape_text", "width"]

_PREFIXES: Final = ((12, "T"), (9, "G"), (6, "M"), (3, "k"))
_LEAST: Final = 24  # characters that a line has in any case


def width() -> int | None:
    """How wide lines may be; None where nobody looks at them."""
    if not sys.stdout.isatty():
        return None
    return max(_LEAST, shutil.get_terminal_size().columns)


def decimal(value: float, unit: str) -> str:
    """Three digits and a prefix: "4.09 GFLOP"."""
    for power, prefix in _PREFIXES:
        if value >= 10**power:
            return f"{value / 10**power:.3g} {prefix}{unit}"
    return f"{value:,.0f} {unit}"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """ "1 node", "1,234 nodes"; `nouns` where that is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def shape_text(dims: Iterable[int | None] | None) -> str:
    """[?, 3, 224, 224], with a sign for each size that is open."""
    return "any rank" if dims is None else f"[{', '.join('?' if size is None else str(size) for size in dims)}]"


def rows(table: Sequence[Sequence[str]], right: Iterable[int] = (), indent: str = "  ") -> Iterator[str]:
    """Lines with aligned columns, the last of which is cut where the terminal ends.

    Args:
        right: The columns that are aligned on the right: numbers.
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
        yield line if limit is None or len(line) <= limit else line[: limit - 1] + "…"


def packed(cells: Sequence[tuple[str, str]], indent: str = "  ") -> Iterator[str]:
    """Names with values, as many beside one another as a line holds, down the columns as in a list of files."""
    limit = width() or 100
    names, values = (max((len(cell[i]) for cell in cells), default=0) for i in (0, 1))
    across = max(1, (limit - len(indent) + 3) // (names + values + 4))
    height = -(-len(cells) // across)
    for line in range(height):
        shown = [f"{name.ljust(names)} {value.rjust(values)}" for name, value in cells[line::height]]
        yield (indent + "   ".join(shown)).rstrip()
