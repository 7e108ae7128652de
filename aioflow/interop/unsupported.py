"""What a model has that cannot be imported: all of it at once, each with where it stands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from aioflow.errors import UnimplementedError

__all__ = ["UnsupportedError", "UnsupportedOp"]

_SHOWN: Final = 5  # nodes of one op


@dataclass(frozen=True, slots=True)
class UnsupportedOp:
    """A node that cannot be imported.

    Attributes:
        op: Its op, with the domain or version where that matters ("com.microsoft:BiasGelu").
        node: Its name, or the name of its first output.
        why: What is missing: "no such op", "mode='cubic' of rank 5".
    """

    op: str
    node: str
    why: str = "no such op"


class UnsupportedError(UnimplementedError):
    """A model has ops that cannot be imported, or saved, or exported: whatever was to be `done` with it.

    Attributes:
        unsupported: Each node, in the order of the file.
    """

    def __init__(self, what: str, unsupported: Iterable[UnsupportedOp], done: str = "imported") -> None:
        self.unsupported = tuple(unsupported)
        by_op: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for each in self.unsupported:
            by_op[each.op, each.why].append(each.node)
        lines = [f"{what} has ops that cannot be {done}:"]
        lines += [f"  {op}: {why} ({_nodes(nodes)})" for (op, why), nodes in sorted(by_op.items())]
        super().__init__("\n".join(lines))
        self.args = (what, self.unsupported, done)  # with which a copy is made


def _nodes(nodes: list[str]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return ", ".join(repr(node) for node in nodes[:_SHOWN]) + more
