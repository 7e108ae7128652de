"""Kernels that can be computed in one call with the kernels of other nodes.

If a kernel leaves no Python code in the CPU caches, the next kernel starts some tens of microseconds later. A small
layer takes no longer than that. A kernel that can be joined is bound to a `Joinable`. The runtime finds runs of nodes
of such nodes (`runtime/shortcuts.py`), and the kernels' package makes one call of each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from aioflow.kernels.registry import KernelBody
from aioflow.memory.values import Value


@dataclass(frozen=True, slots=True)
class ConstantArgument:
    """An argument that is the same in every step."""

    value: Any


# An argument of a member: a value by its number, a constant, or a sequence of these.
MemberArgument: TypeAlias = "int | ConstantArgument | tuple[int | ConstantArgument, ...]"


def given(item: MemberArgument, values: Sequence[Value]) -> Any:
    """Return the value of a member's argument, with `values` by number."""
    if isinstance(item, tuple):
        return tuple(given(each, values) for each in item)
    return item.value if isinstance(item, ConstantArgument) else values[item]


# A function that computes a run of nodes from its outside inputs. It returns the values that are read outside in new
# memory (a tuple for several), or None if the nodes must be computed one by one, for example so that each reports its
# own error.
JoinedBody: TypeAlias = KernelBody


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A node of a run. Its kernel has no effects and returns one array.

    Attributes:
        call: The body that computes the node.
        part: The kernel's description for the joiner; None for the kernel of another package, which is only called.
        arguments: The arguments of `call`. Values are numbered from the run's outside inputs on, followed by the
            members' results.
        fresh: As in `KernelDef`.
        takes_out: As in `KernelDef`.
    """

    call: KernelBody
    part: Any
    arguments: tuple[MemberArgument, ...]
    fresh: bool
    takes_out: bool


class Joiner(Protocol):
    """A function that combines several nodes in one call."""

    def __call__(self, members: Sequence[JoinedMember], inputs: int, outputs: Sequence[int]) -> JoinedBody | None:
        """Return the call for a run of nodes, or None if it would save nothing.

        Args:
            members: The nodes.
            inputs: Number of outside inputs.
            outputs: Positions of the members whose values are read outside.
        """


class Joinable:
    """A body that can be computed together with others.

    Args:
        body: The function that computes the node alone.
        part: The description of the node for the joiner.
        join: The joiner; nodes with the same joiner can be joined.
        is_small: True if only nodes with this joiner are in a run, and any of their values may be read outside. Else
            other nodes may be between them, and only the last value is read outside.
    """

    __slots__ = ("body", "is_small", "join", "part")

    def __init__(self, body: KernelBody, part: Any, join: Joiner, is_small: bool = False) -> None:
        self.body, self.part, self.join, self.is_small = body, part, join, is_small

    def __call__(self, *args: Value, **named: object) -> Value:
        """Call the body."""
        return self.body(*args, **named)


def body_alone(call: KernelBody) -> KernelBody:
    """Return the function that computes a node alone, without the indirection of a `Joinable`."""
    return call.body if isinstance(call, Joinable) else call
