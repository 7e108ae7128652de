"""Comma-separated records, by RFC 4180: a quoted field may contain any characters, with its quotes doubled."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from aioflow.errors import InvalidArgumentError

_SPECIAL: Final = re.compile(rb'["\r\n]')
_QUOTE: Final = ord('"')
_LINE_END: Final = re.compile(rb"[\r\n]")
_LINE_ENDS: Final = re.compile(rb"[\r\n]*")


@cache
def _quoted(delimiter: bytes) -> re.Pattern[bytes]:
    return re.compile(rb'"((?:[^"]|"")*)"(?=' + re.escape(delimiter) + rb"|\Z)")


def split_record(record: bytes, delimiter: bytes, quotes: bool = True) -> list[bytes]:
    """Return the fields of one record. Line ends before a field are skipped.

    Raises:
        InvalidArgumentError: a quote or a line end is where none is allowed.
    """
    if not record:
        return []
    if not (_SPECIAL if quotes else _LINE_END).search(record):
        return record.split(delimiter)
    fields: list[bytes] = []
    at, end = 0, len(record)
    while (at := _passed(record, at)) < end:
        read = _quoted_field if quotes and record[at] == _QUOTE else _plain_field
        field, at = read(record, at, delimiter, quotes)
        fields.append(field)
        at += 1  # skip the delimiter
        # A delimiter at the end of the record is followed by an empty field.
        if at == end:
            fields.append(b"")
    return fields


def _passed(record: bytes, at: int) -> int:
    match = _LINE_ENDS.match(record, at)
    return at if match is None else match.end()


def _quoted_field(record: bytes, at: int, delimiter: bytes, quotes: bool) -> tuple[bytes, int]:
    match = _quoted(delimiter).match(record, at)
    if match is None:
        raise InvalidArgumentError(
            "a quoted field must end with a quote followed by a delimiter or the end of the line",
            expected="quotes inside doubled, and after the last one a delimiter or the end",
            actual=record[at : at + 60],
        )
    return match[1].replace(b'""', b'"'), match.end()


def _plain_field(record: bytes, at: int, delimiter: bytes, quotes: bool) -> tuple[bytes, int]:
    end = record.find(delimiter, at)
    end = len(record) if end < 0 else end
    field = record[at:end]
    if (_SPECIAL if quotes else _LINE_END).search(field):
        raise InvalidArgumentError(
            "an unquoted field cannot have a quote or a line end inside", expected="neither", actual=field[:60]
        )
    return field, end
