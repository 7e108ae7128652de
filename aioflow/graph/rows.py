"""Propagation of batch rows through an op: their positions in the outputs, given their positions in the inputs.

A batch joins the rows of several callers along axis 0 of the feeds. The ops decide whether each caller can get its own
rows of the fetches: `define_op(rows=...)` states a rule for each op, and `compiler.rows` applies them. Without a rule
the answer is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np

from aioflow.graph.shapes import Dims
from aioflow.graph.views import NodeView
from aioflow.memory.values import Array


class RowDependence(IntEnum):
    """The dependence of a tensor on the batch. If several kinds are joined, the result is the greatest."""

    NOTHING = 0  # a list without elements, or a loop variable that is not known yet
    FIXED = 1  # the same for every batch
    SIZED = 2  # depends on the number of rows only
    ROWS = 3  # each part along an axis depends on one row
    UNKNOWN = 4
    REFUTED = 5  # rows depend on one another


@dataclass(frozen=True, slots=True)
class Rows:
    """The position of the rows of the batch in a tensor.

    Attributes:
        kind: The dependence on the batch.
        axis: The axis of the rows, counted from the front.
        each: Number of positions along that axis per row; None if unknown.
        op: The node that decided it, if rows depend on one another or the result is unknown.
        why: The reason: a phrase such as "combines each row with every other one".
    """

    kind: RowDependence
    axis: int = 0
    each: int | None = 1
    op: Any = field(default=None, compare=False)
    why: str = field(default="", compare=False)

    @property
    def is_rows(self) -> bool:
        """True if each row has its own part of the tensor."""
        return self.kind is RowDependence.ROWS


NOTHING: Final = Rows(RowDependence.NOTHING)
FIXED: Final = Rows(RowDependence.FIXED)
SIZED: Final = Rows(RowDependence.SIZED)


def joined(states: Iterable[Rows], op: NodeView) -> Rows:
    """Return the state of a value that `op` selects from several."""
    # NOTHING is neutral: a loop variable that is not known yet must not weaken what another input tells.
    known = {state for state in states if state.kind is not RowDependence.NOTHING}
    worst = max(known, key=lambda state: state.kind, default=NOTHING)
    # Two different positions of rows have no common one, and neither has a value with rows beside one without.
    if len(known) > 1 and worst.is_rows:
        return Rows(
            RowDependence.UNKNOWN, op=op, why="selects among inputs with different rows, or with and without rows"
        )
    return worst


# ── sizes that are not numbers yet ────────────────────────────────────────────────────────────────────────────────────


class Symbol:
    """An unknown element of a shape. An operation whose result is unknown raises TypeError."""

    __slots__ = ()
    least: int | None = None  # lower bound; None if unknown
    __hash__ = None  # type: ignore[assignment]  # unknown values are never equal

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("not known")

    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__

    def __bool__(self) -> NoReturn:
        raise TypeError("not known")


class Open(Symbol):
    """An unknown number that does not depend on the batch and is at least `least`."""

    __slots__ = ("least",)

    def __init__(self, least: int | None = None) -> None:
        self.least = least

    def _grown(self, other: Any) -> Any:
        """Return a sum or a product: at least 0 if both operands are."""
        if not isinstance(other, int | np.integer | Open):
            return NotImplemented
        least = other.least if isinstance(other, Open) else other
        # A sum or product of two sizes is a size. A negative operand could make anything of it.
        return OPEN if self.least is not None and least is not None and least >= 0 else Open()

    def _any(self, other: Any) -> Any:
        return Open() if isinstance(other, int | np.integer | Open) else NotImplemented

    __add__ = __radd__ = __mul__ = __rmul__ = _grown
    __sub__ = __rsub__ = __floordiv__ = __rfloordiv__ = _any

    def __neg__(self) -> Open:
        return Open()


OPEN: Final = Open(0)  # a size
OTHER: Final = Symbol()  # may depend on the batch in any way


class Count(Symbol):
    """The number of rows times `each`; `each` is None if the factor is unknown."""

    __slots__ = ("each",)

    def __init__(self, each: int | None = 1) -> None:
        self.each = each

    @property
    def least(self) -> int:  # type: ignore[override]  # derived here
        # A batch has at least one row. An unknown factor may be 0.
        return 1 if self.each else 0

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Open) and other.least is not None:
            return Count(None)
        # By 0 the product would no longer depend on the rows, and a negative one is no size.
        if isinstance(other, int | np.integer) and other > 0:
            return Count(None if self.each is None else self.each * int(other))
        return NotImplemented

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        # Only exact quotients: n · each // other is linear in n exactly if `other` divides `each`.
        if isinstance(other, int | np.integer) and other > 0 and self.each is not None and not self.each % other:
            return Count(self.each // int(other))
        # (n · a) / (n · b) = a / b: the number of rows cancels out.
        if isinstance(other, Count) and self.each and other.each and not self.each % other.each:
            return self.each // other.each
        return NotImplemented


def as_value(entries: list[Any] | None) -> Array | None:
    """Return a vector of elements, some of which may be symbols, as an array."""
    if entries is None:
        return None
    value = np.empty(len(entries), object)
    value[:] = entries
    return value


# ── rules ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class RowContext:
    """The view of a node that a rule gets.

    Attributes:
        op: The node.
        inputs: The positions of the rows in each of its inputs.
        rows: The indices of the inputs that have rows.
        attrs: Its attributes.
    """

    __slots__ = ("_values", "attrs", "inputs", "op", "rows")

    def __init__(self, op: NodeView, inputs: Sequence[Rows], values: Sequence[Array | None]) -> None:
        self.op = op
        self.attrs = op.attrs
        self.inputs = inputs
        self.rows = [i for i, state in enumerate(inputs) if state.is_rows]
        self._values = values

    def dims(self, index: int) -> Dims:
        """Return the static shape of an input."""
        return self.op.inputs[index].dims

    def rank(self, index: int) -> int | None:
        """Return the rank of an input; None if it is unknown."""
        dims = self.op.inputs[index].dims
        return None if dims is None else len(dims)

    def value(self, index: int) -> Array | None:
        """Return the known value of an input, or None. Its elements are like those of `entries`."""
        return self._values[index]

    def entries(self, index: int) -> list[Any] | None:
        """Return the elements of an input: numbers, and symbols for unknown ones; None if all are unknown."""
        value = self._values[index]
        return None if value is None else value.reshape(-1).tolist()

    def ints(self, index: int) -> list[int] | None:
        """Return the elements of an input if all are known, else None."""
        found = self.entries(index)
        return found if found is not None and all(isinstance(each, int) for each in found) else None

    def unknown(self, why: str) -> Rows:
        """Return the state of an output that the rule cannot decide."""
        return Rows(RowDependence.UNKNOWN, op=self.op, why=why)

    def refuted(self, why: str) -> Rows:
        """Return the state of an output whose rows are not kept apart."""
        return Rows(RowDependence.REFUTED, op=self.op, why=why)

    def at(self, axis: int, each: int | None = 1) -> Rows:
        """Return the state of an output with rows along an axis."""
        return Rows(RowDependence.ROWS, axis, each)

    def alone(self, index: int = 0) -> Rows | None:
        """Return the position of the rows in the input `index` if no other input has rows, else None."""
        return self.inputs[index] if self.rows == [index] else None


RowFunction: TypeAlias = Callable[[RowContext], "Rows | list[Rows]"]


@dataclass(frozen=True, slots=True)
class RowRule:
    """A rule for the rows of an op.

    Attributes:
        rule: Returns the position of the rows in the output, or a list with one position per output. Called if an input
            has rows.
        reads_sizes: Also call the rule if an input depends on the number of rows, because the rule reads its value.
        always: Call the rule for any inputs.
        values: Returns the known values of the outputs, in addition to those of `OpDef.value`.
        makes_list: True if an output is a list, which may have no elements.
    """

    rule: RowFunction
    reads_sizes: bool = False
    always: bool = False
    values: Callable[[RowContext], list[Array | None]] | None = None
    makes_list: bool = False


NO_RANK: Final = "has an input of unknown rank"


def _passed(ctx: RowContext) -> list[Rows]:
    return list(ctx.inputs)


def aligned(ctx: RowContext, ends: set[tuple[int, int | None]], rank: int) -> Rows:
    """Return the position of the rows in the output of an op that broadcasts its inputs to `rank` dimensions.

    Args:
        ctx: The node.
        ends: Axis, counted from the end, and number of positions per row of each input that has rows.
        rank: The rank of the output.
    """
    # Rows at different axes: broadcasting then forms all pairs of rows, as an outer sum does.
    if len({end for end, _ in ends}) > 1:
        return ctx.refuted("combines each row with every other one")
    end, each = next(iter(ends))
    if len(ends) > 1 or (each is None and len(ctx.rows) > 1):
        return ctx.unknown("has inputs whose rows may differ in length")
    # An operand of size other than 1 along the rows' axis fits only one number of rows.
    for i in range(len(ctx.inputs)):
        dims = ctx.dims(i)
        if i not in ctx.rows and dims is not None and len(dims) >= end and dims[-end] != 1:
            return ctx.unknown("combines rows with an input of fixed size along their axis")
    return ctx.at(rank - end, each)


def _each_element(ctx: RowContext) -> Rows:
    ranks = [ctx.rank(i) for i in range(len(ctx.inputs))]
    known = [rank for rank in ranks if rank is not None]
    if len(known) < len(ranks):
        return ctx.unknown(NO_RANK)
    # Broadcasting aligns from the right, so axes are compared by their distance from the end.
    return aligned(ctx, {(known[i] - ctx.inputs[i].axis, ctx.inputs[i].each) for i in ctx.rows}, max(known))


# Each output is the input at the same position.
passed: Final = RowRule(_passed)
each_element: Final = RowRule(_each_element)
