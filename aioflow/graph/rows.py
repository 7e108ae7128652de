"""The way of the rows of a batch through an op: where they are in its outputs, given where they are in its inputs.

A batch joins the rows of several callers along axis 0 of the feeds. The ops decide whether each caller can get its own
rows of the fetches: `define_op(rows=...)` states a rule for each op, and `compiler.rows` applies them. Without a rule
the answer is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from aioflow.graph.arrays import Array
    from aioflow.graph.operation import Operation
    from aioflow.graph.shapes import Dims

__all__ = [
    "FIXED",
    "NOTHING",
    "NO_RANK",
    "OPEN",
    "OTHER",
    "SIZED",
    "Count",
    "Kind",
    "Open",
    "RowContext",
    "RowRule",
    "Rows",
    "Symbol",
    "aligned",
    "as_value",
    "each_element",
    "joined",
    "passed",
]


class Kind(IntEnum):
    """The way in which a tensor depends on the batch. Where several meet, the greatest one holds."""

    NOTHING = 0  # a list without elements, or a loop variable that is not known yet
    FIXED = 1  # it is the same for every batch
    SIZED = 2  # it depends on the number of rows, and on nothing else of them
    ROWS = 3  # each part along an axis is made from one row
    UNKNOWN = 4
    REFUTED = 5  # rows are not kept apart


@dataclass(frozen=True, slots=True)
class Rows:
    """The place of the rows of the batch in a tensor.

    Attributes:
        axis: The axis along which they are, from the front.
        each: How many places along that axis each row has; None where that is not known.
        op: The node that decided it, where rows are not kept apart, or it is not known.
        why: What that node does.
    """

    kind: Kind
    axis: int = 0
    each: int | None = 1
    op: Operation | None = field(default=None, compare=False)
    why: str = field(default="", compare=False)

    @property
    def is_rows(self) -> bool:
        """Whether each row has its own part."""
        return self.kind is Kind.ROWS


NOTHING: Final = Rows(Kind.NOTHING)
FIXED: Final = Rows(Kind.FIXED)
SIZED: Final = Rows(Kind.SIZED)


def joined(states: Iterable[Rows], op: Operation) -> Rows:
    """Return the state of a value that `op` selects from several."""
    known = {state for state in states if state.kind is not Kind.NOTHING}
    worst = max(known, key=lambda state: state.kind, default=NOTHING)
    if len(known) > 1 and worst.is_rows:
        return Rows(Kind.UNKNOWN, op=op, why="chooses between what has rows and what has none, or has them elsewhere")
    return worst


# ── sizes that are not numbers yet ───────────────────────────────────────────────────────────────────────────────────


class Symbol:
    """An unknown element of a shape. An operation whose result is unknown raises TypeError."""

    __slots__ = ()
    least: int | None = None  # that it may be; None where that is not known
    __hash__ = None  # type: ignore[assignment]  # what is not known is equal to nothing

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("not known")

    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__

    def __bool__(self) -> NoReturn:
        raise TypeError("not known")


class Open(Symbol):
    """An unknown number that does not depend on the batch, and is no less than `least`."""

    __slots__ = ("least",)

    def __init__(self, least: int | None = None) -> None:
        self.least = least

    def _grown(self, other: Any) -> Any:
        """Return a sum or a product."""
        if not isinstance(other, int | np.integer | Open):
            return NotImplemented
        least = other.least if isinstance(other, Open) else other
        return OPEN if self.least is not None and least is not None and least >= 0 else Open()

    def _any(self, other: Any) -> Any:
        return Open() if isinstance(other, int | np.integer | Open) else NotImplemented

    __add__ = __radd__ = __mul__ = __rmul__ = _grown
    __sub__ = __rsub__ = __floordiv__ = __rfloordiv__ = _any

    def __neg__(self) -> Open:
        return Open()


OPEN: Final = Open(0)  # a size
OTHER: Final = Symbol()  # what may depend on the batch in any way


class Count(Symbol):
    """The number of rows, times `each`; None where the factor is unknown."""

    __slots__ = ("each",)

    def __init__(self, each: int | None = 1) -> None:
        self.each = each

    @property
    def least(self) -> int:  # type: ignore[override]  # of what is known here
        return 1 if self.each else 0

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Open) and other.least is not None:
            return Count(None)
        if isinstance(other, int | np.integer) and other > 0:
            return Count(None if self.each is None else self.each * int(other))
        return NotImplemented

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        if isinstance(other, int | np.integer) and other > 0 and self.each is not None and not self.each % other:
            return Count(self.each // int(other))
        if isinstance(other, Count) and self.each and other.each and not self.each % other.each:
            return self.each // other.each
        return NotImplemented


def as_value(entries: list[Any] | None) -> Array | None:
    """Return a vector of elements, some of which may be symbols, as a value."""
    if entries is None:
        return None
    value = np.empty(len(entries), object)
    value[:] = entries
    return value


# ── rules ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class RowContext:
    """The view of a node that a rule gets.

    Attributes:
        op: The node.
        inputs: Where the rows are in each of its inputs.
        rows: The positions of the inputs that have rows.
        attrs: Its attributes.
    """

    __slots__ = ("_values", "attrs", "inputs", "op", "rows")

    def __init__(self, op: Operation, inputs: Sequence[Rows], values: Sequence[Array | None]) -> None:
        self.op = op
        self.attrs = op.attrs
        self.inputs = inputs
        self.rows = [i for i, state in enumerate(inputs) if state.is_rows]
        self._values = values

    def dims(self, index: int) -> Dims:
        """Return the static shape of an input."""
        return self.op.inputs[index].dims

    def rank(self, index: int) -> int | None:
        """Return the rank of an input; None where it is unknown."""
        dims = self.op.inputs[index].dims
        return None if dims is None else len(dims)

    def value(self, index: int) -> Array | None:
        """Return the known value of an input, with elements as of `entries`, or None."""
        return self._values[index]

    def entries(self, index: int) -> list[Any] | None:
        """Return the elements of an input: numbers, and symbols for unknown ones; None where all are unknown."""
        value = self._values[index]
        return None if value is None else value.reshape(-1).tolist()

    def ints(self, index: int) -> list[int] | None:
        """Return the elements of an input if all are known, else None."""
        found = self.entries(index)
        return found if found is not None and all(isinstance(each, int) for each in found) else None

    def unknown(self, why: str) -> Rows:
        """Return the state of an output that the rule cannot decide."""
        return Rows(Kind.UNKNOWN, op=self.op, why=why)

    def refuted(self, why: str) -> Rows:
        """Return the state of an output whose rows are not kept apart."""
        return Rows(Kind.REFUTED, op=self.op, why=why)

    def at(self, axis: int, each: int | None = 1) -> Rows:
        """Return the state of an output with rows along an axis."""
        return Rows(Kind.ROWS, axis, each)

    def alone(self, index: int = 0) -> Rows | None:
        """Return where the rows are in that input, if no other one has rows."""
        return self.inputs[index] if self.rows == [index] else None


Rule: TypeAlias = Callable[[RowContext], "Rows | list[Rows]"]


@dataclass(frozen=True, slots=True)
class RowRule:
    """A rule for the rows of an op: `rule` gives where they are in its output (or in each of several), and is called if
    an input has rows.

    Attributes:
        reads_sizes: The rule is asked, too, where an input depends on the number of rows: it looks at its value.
        always: It is asked whatever the inputs are.
        values: What is known of the values of the outputs, beside what `OpDef.value` says.
        makes_list: An output is a list, which may have no elements.
    """

    rule: Rule
    reads_sizes: bool = False
    always: bool = False
    values: Callable[[RowContext], list[Array | None]] | None = None
    makes_list: bool = False


NO_RANK: Final = "has an input of unknown rank"


def _passed(ctx: RowContext) -> list[Rows]:
    return list(ctx.inputs)


def aligned(ctx: RowContext, ends: set[tuple[int, int | None]], rank: int) -> Rows:
    """Inputs that are broadcast to one rank; `ends` are the axes of rows, counted from the end."""
    if len({end for end, _ in ends}) > 1:
        return ctx.refuted("combines each row with every other one")
    end, each = next(iter(ends))
    if len(ends) > 1 or (each is None and len(ctx.rows) > 1):
        return ctx.unknown("has inputs whose rows may be of different lengths")
    for i in range(len(ctx.inputs)):
        dims = ctx.dims(i)
        if i not in ctx.rows and dims is not None and len(dims) >= end and dims[-end] != 1:
            return ctx.unknown("combines rows with an input that has a size of its own along their axis")
    return ctx.at(rank - end, each)


def _each_element(ctx: RowContext) -> Rows:
    ranks = [ctx.rank(i) for i in range(len(ctx.inputs))]
    known = [rank for rank in ranks if rank is not None]
    if len(known) < len(ranks):
        return ctx.unknown(NO_RANK)
    return aligned(ctx, {(known[i] - ctx.inputs[i].axis, ctx.inputs[i].each) for i in ctx.rows}, max(known))


passed: Final = RowRule(_passed)  # each output is the input of the same position
each_element: Final = RowRule(_each_element)
