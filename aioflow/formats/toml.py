"""Configuration files in TOML. Errors name the file and the key, or the line that is not TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from aioflow.arguments import brief
from aioflow.errors import InvalidArgumentError, NotFoundError

_MOST_BYTES: Final = 4 << 20

TomlTable: TypeAlias = Mapping[str, Any]


def read_document(path: Path) -> TomlTable:
    """Read and parse a file.

    Raises:
        NotFoundError: the file cannot be read.
        InvalidArgumentError: as `parse_document`.
    """
    try:
        with path.open("rb") as file:
            # One byte more than allowed, to detect a file that is too long.
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from error
    return parse_document(str(path), data)


def parse_document(name: str, data: bytes) -> TomlTable:
    """Parse the bytes of the file `name`. Raises InvalidArgumentError if they are too long or not TOML."""
    if len(data) > _MOST_BYTES:
        raise InvalidArgumentError(f"{name} is too long", expected=f"at most {_MOST_BYTES} bytes", actual=len(data))
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # errors of Unicode and TOML are subclasses of ValueError
        raise InvalidArgumentError(f"{name} is not TOML: {error}") from error


def table_of(name: str, document: TomlTable, key: str) -> TomlTable | None:
    """Return the table at a key; None if the key is missing. Raises InvalidArgumentError if it is no table."""
    found = document.get(key)
    if found is not None and not isinstance(found, dict):
        raise InvalidArgumentError(f"{name}: {key}", expected="a table", actual=brief(found))
    return found


def require_known(name: str, document: TomlTable, keys: Collection[str]) -> None:
    """Raise InvalidArgumentError if the document has a key that is not in `keys`."""
    for key in document:
        if key not in keys:
            raise InvalidArgumentError(
                f"{name} has an unknown key", expected=f"one of {', '.join(keys)}", actual=brief(key)
            )
