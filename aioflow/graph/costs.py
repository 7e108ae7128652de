"""How much work an op is, from the shapes alone: the static half of the cost model (whitepaper, 3.2.1).

A cost says what the work is counted in (bytes moved, multiply-adds), which measured rate turns that into seconds, and
how much harder the op is than the one by which the rate was measured. Estimates need to be right in order, not in the
last digit: placement compares them. The op definitions name these; what only one op needs stands beside that op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

__all__ = [
    "FREE",
    "LIGHT",
    "MULTIPLYING_RATES",
    "PER_ELEMENT",
    "Cost",
    "Operand",
    "Work",
    "moved",
    "nothing",
    "read",
    "written",
]


class Operand(NamedTuple):
    """One input or output: its dtype's name, its shape with every size filled in, and its bytes."""

    dtype: str
    dims: tuple[int, ...]
    size: int

    @property
    def elements(self) -> int:
        """How many elements."""
        return math.prod(self.dims)


# Attributes, inputs and outputs of a node → its work, in the unit of the rate.
Work: TypeAlias = Callable[[Mapping[str, Any], Sequence[Operand], Sequence[Operand]], float]


def moved(_: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Bytes read and written."""
    return sum([i.size for i in inputs]) + sum([o.size for o in outputs])


def read(_: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Bytes read."""
    return sum([i.size for i in inputs])


def written(_: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Bytes written, and as many read."""
    return 2.0 * sum([o.size for o in outputs])


def nothing(_: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """No work beyond the call."""
    return 0.0


class Cost(NamedTuple):
    """What an op costs.

    Attributes:
        rate: "product" or a name in `calibration.RATES`; "" for what only names a value or steers it, and takes no time
            at all.
        work: Counts the work, in the rate's unit.
        factor: How much harder than the op by which the rate was measured.
    """

    rate: str
    work: Work = moved
    factor: float = 1.0

    @property
    def is_free(self) -> bool:
        """Whether it takes no time at all, not even that of a call."""
        return not self.rate


FREE: Final = Cost("", nothing)
LIGHT: Final = Cost("elementwise", nothing)
PER_ELEMENT: Final = Cost("elementwise", moved)

# Rates of ops that multiply and add: how they round may depend on whether two operands are one buffer.
MULTIPLYING_RATES: Final = frozenset({"product", "convolution"})
