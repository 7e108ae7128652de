"""Conversion of the model's names, which may be any text in ONNX, to names of nodes."""

from __future__ import annotations

import re
from typing import Final

from aioflow.errors import InvalidArgumentError

_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9_.\\/>-]")
_NOT_FIRST: Final = re.compile(r"^(?=[^A-Za-z0-9.])")


def check_text(*names: str | bytes) -> None:
    """Raise InvalidArgumentError unless all names are text. Names that are not UTF-8 arrive as bytes."""
    for name in names:
        if not isinstance(name, str):
            raise InvalidArgumentError("a name in the model is not UTF-8", expected="text", actual=name[:40])


def node_name(name: str, otherwise: str) -> str:
    """Return the name with the changes that make it a valid name of a node.

    A "/" at either end is removed, "_" replaces characters that are not allowed, and "." precedes a leading "_".
    Equal names have equal results. Different names may collide, and the graph then numbers them.

    Raises:
        InvalidArgumentError: a name is not UTF-8.
    """
    check_text(name, otherwise)
    cleaned = _NOT_ALLOWED.sub("_", name).strip("/") or _NOT_ALLOWED.sub("_", otherwise).strip("/") or "node"
    return _NOT_FIRST.sub(".", cleaned)
