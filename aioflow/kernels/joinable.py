"""Kernels that may be computed together with those of other nodes, as one call.

To go from one kernel to the next takes some tens of microseconds where a kernel leaves nothing of Python in the caches,
which is as long as a small layer itself takes. A kernel that can do without is bound to a `Joinable`. The runtime finds
runs of nodes that lead to one value (`runtime/shortcuts.py`), and the kernels' package makes one call of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from aioflow.kernels.registry import Body

__all__ = ["Constant", "Item", "Joinable", "Joiner", "Member", "Shortcut", "given"]


@dataclass(frozen=True, slots=True)
class Constant:
    """An argument that is the same in every step."""

    value: Any


# An argument of a member: a value by its number, a constant, or a sequence of these.
Item: TypeAlias = "int | Constant | tuple[int | Constant, ...]"


def given(item: Item, values: Sequence[Any]) -> Any:
    """What a member is called with for an argument, of these values."""
    if isinstance(item, tuple):
        return tuple(given(each, values) for each in item)
    return item.value if isinstance(item, Constant) else values[item]


# What computes a run of nodes, given the values that they read from outside. It gives that of the last node, in memory
# of its own; or None where they are to be computed one by one, and say themselves what is wrong.
Shortcut: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a run of nodes. Its kernel has no effects, and makes one array.

    Attributes:
        call: Computes it.
        part: What its kernel says of it; None for the kernel of another package, which is only called.
        arguments: What it is called with. Values are counted from those that are read from outside; then comes that of
            each member.
        fresh, takes_out: As those of `KernelDef`.
    """

    call: Body
    part: Any
    arguments: tuple[Item, ...]
    fresh: bool
    takes_out: bool


class Joiner(Protocol):
    """Makes one call of several nodes."""

    def __call__(self, members: Sequence[Member], inputs: int) -> Shortcut | None:
        """The call of a run of nodes that reads so many values from outside; None where it would gain nothing."""


class Joinable:
    """A body that may be computed together with others.

    Args:
        body: Computes the node alone.
        part: What the joiner must know of it.
        join: The joiner, the same for all that may be joined with one another.
    """

    __slots__ = ("body", "join", "part")

    def __init__(self, body: Body, part: Any, join: Joiner) -> None:
        self.body, self.part, self.join = body, part, join

    def __call__(self, *args: Any, **named: Any) -> Any:
        """As the body."""
        return self.body(*args, **named)
