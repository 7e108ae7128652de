"""THE list of optimizations, in the order in which they run, each with its switch (`SessionConfig.optimizations`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.errors import InvalidArgumentError

__all__ = ["PASSES", "Evaluate", "Pass", "chosen_passes"]

# Computes a node from the values of its inputs, as its device would; None where it cannot be computed now.
Evaluate: TypeAlias = Callable[[Node, ClientGraph, Sequence[Any]], Sequence[Any] | None]


@dataclass(frozen=True, slots=True)
class Pass:
    """One optimization.

    Attributes:
        name: What it is switched by.
        run: Maps a graph to one with the same results.
        exact: Whether results stay the same to the last bit. Passes that are not are off unless they are asked for.
    """

    name: str
    run: Callable[[ClientGraph, Evaluate], ClientGraph]
    exact: bool = True


PASSES: Final[tuple[Pass, ...]] = ()


def chosen_passes(switches: bool | Mapping[str, bool]) -> tuple[Pass, ...]:
    """The passes that the switches leave on, in order.

    Raises:
        InvalidArgumentError: a switch names no pass.
    """
    if isinstance(switches, bool):
        return tuple(p for p in PASSES if switches and p.exact)
    unknown = sorted(switches.keys() - {p.name for p in PASSES})
    if unknown:
        raise InvalidArgumentError(
            "no such optimization", expected=f"names among {[p.name for p in PASSES]}", actual=unknown
        )
    return tuple(p for p in PASSES if switches.get(p.name, p.exact))
