"""Tables from text files with one entry per line. Key and value are the line, its number, or one of its columns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from aioflow.concurrency.stopping import batches, checkpoint, reserve
from aioflow.concurrency.threads import in_thread
from aioflow.errors import InvalidArgumentError, OutOfRangeError
from aioflow.formats.allowed_folders import AllowedFolders
from aioflow.formats.files import PIECE, file_errors, path_text
from aioflow.formats.number_text import number_parser
from aioflow.formats.stores import store_of
from aioflow.graph.dtypes import DType, float32, float64, int32, int64, string
from aioflow.kernels.convert import as_bytes
from aioflow.kernels.lookup.table import Entries, LookupTable, StaticTable, distinct_entries
from aioflow.kernels.lookup.tables import static_table
from aioflow.kernels.registry import Binding, binder

_WHOLE_LINE: Final = -2
_LINE_NUMBER: Final = -1
_COLUMN_TYPES: Final = (string, int32, int64, float32, float64)
_LINE: Final = 64  # approximate bytes of a line beside its text

# From the number of a line and its columns (the whole line first) to a key or a value.
_Part = Callable[[int, list[bytes]], Any]


class _Layout(NamedTuple):
    """The attributes of the op, which map a line to its key and value."""

    key_index: int
    value_index: int
    vocab_size: int
    delimiter: str
    offset: int


@binder(
    "InitializeTableFromTextFileV2",
    device="CPU",
    host={"filename": as_bytes},
    is_async=True,
    takes=LookupTable,
    opens_files=True,
)
def initialize_from_file(binding: Binding) -> Callable[[LookupTable, bytes], Awaitable[None]]:
    layout = _Layout(**{name: binding.attrs[name] for name in _Layout._fields})
    folders = binding.folders

    async def fill(table: LookupTable, filename: bytes) -> None:
        static = static_table(table)
        path = path_text(filename)
        # Reading has no effect and may be abandoned; the table is filled afterwards, all at once.
        entries = await in_thread(_read, static, path, folders, layout, effects=False)
        static.install(entries)

    return fill


# ── reading: this blocks ──────────────────────────────────────────────────────────────────────────────────────────────


def _read(table: StaticTable, path: str, folders: AllowedFolders, layout: _Layout) -> Entries:
    """Return the entries of the file, or only the first one for a table that is initialized and ignores them."""
    _check(layout)
    parts = [
        _part(dtype, index, layout.offset, path)
        for dtype, index in ((table.key_dtype, layout.key_index), (table.value_dtype, layout.value_index))
    ]
    lines = _lines(path, folders)
    total = len(lines) if layout.vocab_size < 0 else layout.vocab_size
    if not total or not lines:
        raise OutOfRangeError(f"{path} has no entries for table {table.name!r}", expected="a line", actual="none")
    if table.is_initialized:
        return dict(_entries(lines[:1], parts, layout, path))
    found = distinct_entries(table.name, _entries(lines[:total], parts, layout, path), total)
    if total > len(lines):
        raise InvalidArgumentError(f"{path} has fewer lines than vocab_size", expected=total, actual=len(lines))
    return found


def _check(layout: _Layout) -> None:
    if len(layout.delimiter.encode(errors="surrogateescape")) != 1:
        raise InvalidArgumentError("the delimiter is not a character", expected="one byte", actual=layout.delimiter)


def _lines(path: str, folders: AllowedFolders) -> list[bytes]:
    """Return the lines without their ends. Raise NotFoundError, ResourceExhaustedError, … on failed reads."""
    store, name = store_of(path, folders)
    content = bytearray()
    with store.open(name) as file, file_errors(path):
        while piece := file.read(PIECE):
            reserve(len(content) + len(piece))
            content += piece
            checkpoint()
    reserve(len(content) + _LINE * content.count(b"\n"))
    lines = bytes(content).split(b"\n")
    if not lines[-1]:
        lines.pop()  # a newline at the end of the file starts no new line
    return lines


def _entries(lines: list[bytes], parts: list[_Part], layout: _Layout, path: str) -> Iterator[tuple[Any, Any]]:
    key_of, value_of = parts
    splits = max(layout.key_index, layout.value_index) >= 0
    # The delimiter may be any byte, also one that is not valid UTF-8.
    delimiter = layout.delimiter.encode(errors="surrogateescape")
    for number, line in enumerate(batches(lines)):
        text = line.removesuffix(b"\r")
        if not text:
            raise InvalidArgumentError(f"line {number + 1} of {path} is empty", expected="an entry", actual=repr(line))
        columns = [text, *text.split(delimiter)] if splits else [text]
        yield key_of(number, columns), value_of(number, columns)


def _part(dtype: DType, index: int, offset: int, path: str) -> _Part:
    """Return a function that extracts keys or values of that dtype. Raise InvalidArgumentError for a misfit dtype."""
    if index == _LINE_NUMBER:
        if dtype is not int64:
            raise InvalidArgumentError("the number of a line is an int64", expected="int64", actual=dtype.name)
        return lambda number, columns: number + offset
    if index == _WHOLE_LINE and dtype is not string and not dtype.is_integer:
        raise InvalidArgumentError("a whole line is a string or an integer", expected="string", actual=dtype.name)
    if dtype not in _COLUMN_TYPES:
        raise InvalidArgumentError(
            "a column is a string or a number", expected=[each.name for each in _COLUMN_TYPES], actual=dtype.name
        )
    # Item 0 of the columns is the whole line.
    at = index + 1 if index >= 0 else 0
    parse = None if dtype is string else number_parser(dtype)

    def part(number: int, columns: list[bytes]) -> Any:
        if at >= len(columns):
            raise InvalidArgumentError(
                f"line {number + 1} of {path} has too few columns", expected=at, actual=len(columns) - 1
            )
        if parse is None:
            return columns[at]
        with np.errstate(over="ignore"):  # numbers that are too large become infinite
            found = parse(columns[at])
        if found is None:
            raise InvalidArgumentError(
                f"line {number + 1} of {path} has no number", expected=dtype.name, actual=repr(columns[at][:60])
            )
        return found if isinstance(found, int) else found.item()

    return part
