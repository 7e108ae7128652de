"""Kernels that can be computed in one call with the kernels of other nodes.

If a kernel leaves no Python code in the CPU caches, the next kernel starts some tens of microseconds later. A small
layer takes no longer than that. A kernel that can be joined is bound to a `Joinable`. The runtime finds runs of nodes
that lead to one value (`runtime/shortcuts.py`), and the kernels' package makes one call of each run.
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


# A function that computes a run of nodes from its outside inputs. It returns the last node's value in new memory, or
# None if the nodes must be computed one by one, for example so that each reports its own error.
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

    def __call__(self, members: Sequence[JoinedMember], inputs: int) -> JoinedBody | None:
        """Return the call for a run of nodes with `inputs` outside inputs, or None if it would save nothing."""


class Joinable:
    """A body that can be computed together with others.

    Args:
        body: The function that computes the node alone.
        part: The description of the node for the joiner.
        join: The joiner; nodes with the same joiner can be joined.
    """

    __slots__ = ("body", "join", "part")

    def __init__(self, body: KernelBody, part: Any, join: Joiner) -> None:
        self.body, self.part, self.join = body, part, join

    def __call__(self, *args: Value, **named: object) -> Value:
        """Call the body."""
        return self.body(*args, **named)
