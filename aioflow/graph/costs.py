"""The amount of work of an op, from shapes alone: the static half of the cost model (whitepaper, 3.2.1).

A cost consists of the unit of the work (bytes moved, multiply-adds), the measured rate that converts it to seconds, and
the effort relative to the op by which the rate was measured. Estimates must be right in order of magnitude only,
because placement compares them. Op definitions refer to the costs here; a cost for one op is next to that op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias


class Operand(NamedTuple):
    """One input or output: its dtype's name, its shape without unknown sizes, and its bytes."""

    dtype: str
    dims: tuple[int, ...]
    size: int

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)


# Returns the work of a node, in the unit of the rate, from its attributes, inputs and outputs.
WorkFunction: TypeAlias = Callable[[Mapping[str, Any], Sequence[Operand], Sequence[Operand]], float]


def moved(_: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Return the bytes read and written."""
    return sum([i.size for i in inputs]) + sum([o.size for o in outputs])


def read(_: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Return the bytes read."""
    return sum([i.size for i in inputs])


def written(_: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Return twice the bytes written, for an op that reads as many as it writes."""
    return 2.0 * sum([o.size for o in outputs])


def nothing(_: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Return 0: no work beyond the call."""
    return 0.0


class Cost(NamedTuple):
    """The cost of an op.

    Attributes:
        rate: "product" or a name in `calibration.RATES`; "" for ops that take no time: they name values or are control
            flow.
        work: Returns the amount of work, in the rate's unit.
        factor: The effort relative to the op by which the rate was measured.
    """

    rate: str
    work: WorkFunction = moved
    factor: float = 1.0

    @property
    def is_free(self) -> bool:
        """True if the op takes no time at all, not even that of a call."""
        return not self.rate


FREE: Final = Cost("", nothing)
LIGHT: Final = Cost("elementwise", nothing)
PER_ELEMENT: Final = Cost("elementwise", moved)

# Rates of ops that multiply and add: their rounding may depend on whether two operands share one buffer.
MULTIPLYING_RATES: Final = frozenset({"product", "convolution"})
