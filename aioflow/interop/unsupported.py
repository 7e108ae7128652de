"""The error that lists every unsupported node of a model at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from aioflow.errors import UnimplementedError

_SHOWN: Final = 5  # nodes of each op that the message lists


@dataclass(frozen=True, slots=True)
class UnsupportedOp:
    """A node that cannot be imported.

    Attributes:
        op: Its op, with the domain or version where that matters ("com.microsoft:BiasGelu").
        node: Its name, or the name of its first output.
        why: The missing support: "no such op", "mode='cubic' of rank 5".
    """

    op: str
    node: str
    why: str = "no such op"


class UnsupportedError(UnimplementedError):
    """The error of a model with ops that cannot be imported, saved or exported.

    Args:
        what: Name of the model, for the message.
        unsupported: The nodes.
        done: The failed action, as a participle for the message.

    Attributes:
        unsupported: The nodes, in the order of the file.
    """

    def __init__(self, what: str, unsupported: Iterable[UnsupportedOp], done: str = "imported") -> None:
        self.unsupported = tuple(unsupported)
        by_op: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for each in self.unsupported:
            by_op[each.op, each.why].append(each.node)
        lines = [f"{what} has ops that cannot be {done}:"]
        lines += [f"  {op}: {why} ({_nodes(nodes)})" for (op, why), nodes in sorted(by_op.items())]
        super().__init__("\n".join(lines))
        self.args = (what, self.unsupported, done)  # the arguments of `__init__`, for copy and pickle


def _nodes(nodes: list[str]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return ", ".join(repr(node) for node in nodes[:_SHOWN]) + more
