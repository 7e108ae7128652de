"""Names of the model as names of nodes: ONNX allows any text."""

from __future__ import annotations

import re
from typing import Final

from aioflow.errors import InvalidArgumentError

__all__ = ["check_text", "node_name"]

_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9_.\\/>-]")
_NOT_FIRST: Final = re.compile(r"^(?=[^A-Za-z0-9.])")


def check_text(*names: str | bytes) -> None:
    """Raise InvalidArgumentError unless they are text: what is not UTF-8 comes as bytes."""
    for name in names:
        if not isinstance(name, str):
            raise InvalidArgumentError("a name in the model is not UTF-8", expected="text", actual=name[:40])


def node_name(name: str, otherwise: str) -> str:
    """A name that nodes may have: "/" at the ends left out, "_" for what is not allowed, "." before a first "_".

    The same name always gives the same one; two that differ may meet, and the graph then numbers them.

    Raises:
        InvalidArgumentError: it is not UTF-8.
    """
    check_text(name, otherwise)
    cleaned = _NOT_ALLOWED.sub("_", name).strip("/") or _NOT_ALLOWED.sub("_", otherwise).strip("/") or "node"
    return _NOT_FIRST.sub(".", cleaned)
