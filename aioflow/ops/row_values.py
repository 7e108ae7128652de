"""Row rules for ops that compute with row counts: they propagate the known values derived from shapes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.rows import OPEN, OTHER, Count, Open, RowContext, RowRule, Rows, Symbol, as_value, each_element
from aioflow.memory.values import Array
from aioflow.ops.rows import reduced


def _by_places(place: Callable[..., object]) -> Callable[[RowContext], list[Array | None]]:
    """Return a rule for values that are computed element by element, with broadcasting."""

    def values(ctx: RowContext) -> list[Array | None]:
        found = [ctx.value(i) for i in range(len(ctx.inputs))]
        given = [value for value in found if value is not None]
        if len(given) < len(found):
            return [None]
        try:
            return [np.asarray(np.frompyfunc(place, len(given), 1)(*given), object)]
        except ValueError:  # the shapes do not broadcast
            return [None]

    return values


def _plain(each: object) -> Any:
    return each.item() if isinstance(each, np.generic) else each


def _together(*elements: object) -> Symbol:
    """Return an unknown element computed from `elements`. It may depend on the batch only if one of them does."""
    return Open() if all(isinstance(each, int | Open) for each in map(_plain, elements)) else OTHER


def _is_below(number: object, symbol: object) -> bool:
    """Return whether a number is below every possible value of a symbol."""
    return isinstance(number, int) and isinstance(symbol, Symbol) and symbol.least is not None and number < symbol.least


def compared(compare: Callable[[Any, Any], object]) -> RowRule:
    """Return the rule of a comparison. Its result is known if a number is below every possible value of a size."""

    def place(left: Any, right: Any) -> object:
        left, right = _plain(left), _plain(right)
        if isinstance(left, int) and isinstance(right, int):
            return bool(compare(left, right))
        if _is_below(right, left):
            return bool(compare(left.least, right))
        if _is_below(left, right):
            return bool(compare(left, right.least))
        return _together(left, right)

    def rule(ctx: RowContext) -> Rows | list[Rows]:
        if not ctx.attrs.get("incompatible_shape_error", True):
            return ctx.unknown("returns False for incompatible shapes")
        return each_element.rule(ctx)

    return RowRule(rule, values=_by_places(place))


def _quotient(left: Any, right: Any) -> object:
    left, right = _plain(left), _plain(right)
    try:
        return left // right
    except (TypeError, ZeroDivisionError):
        return _together(left, right)


def _product(ctx: RowContext) -> list[Array | None]:
    """Return the product of all sizes of a shape."""
    entries, axes = ctx.entries(0), ctx.ints(1)
    if entries is None or axes not in ([0], [-1]) or ctx.attrs["keep_dims"] or ctx.rank(0) != 1:
        return [None]
    value = np.empty((), object)
    try:
        value[()] = prod(entries)
    except TypeError:
        return [None]
    return [value]


def _one_of(condition: object, left: object, right: object) -> object:
    condition = _plain(condition)
    if isinstance(condition, bool):
        return _plain(left if condition else right)
    return _together(condition, left, right)


def _common_size(left: object, right: object) -> object:
    left, right = _plain(left), _plain(right)
    if isinstance(left, int) and (left == 1 or not isinstance(right, int)):
        left, right = right, left
    if isinstance(right, int):
        if right == 1 or isinstance(left, int):
            return left  # incompatible sizes fail when the step runs
        return right if isinstance(left, Open) else OTHER
    if isinstance(left, Count) and isinstance(right, Count) and left.each is not None and left.each == right.each:
        return left
    return OPEN if isinstance(left, Open) and isinstance(right, Open) else OTHER


def _common_shape(ctx: RowContext) -> list[Array | None]:
    both = [ctx.entries(0), ctx.entries(1)]
    if both[0] is None or both[1] is None:
        return [None]
    rank = max(len(both[0]), len(both[1]))
    # Broadcasting aligns shapes at their last axes.
    left, right = ([1] * (rank - len(each)) + each for each in (both[0], both[1]))
    return [as_value([_common_size(a, b) for a, b in zip(left, right, strict=True)])]


def _converted(ctx: RowContext) -> list[Array | None]:
    """Return the value of a Cast from an integer dtype to int32 or int64, which can hold sizes."""
    given, made = ctx.op.inputs[0].dtype, ctx.op.outputs[0].dtype
    return [ctx.value(0) if given.is_integer and made in (dtypes.int32, dtypes.int64) else None]


quotient: Final = RowRule(each_element.rule, values=_by_places(_quotient))
product: Final = RowRule(reduced().rule, values=_product)
selected: Final = RowRule(each_element.rule, values=_by_places(_one_of))
common_shape: Final = RowRule(lambda ctx: ctx.unknown("uses rows as sizes"), values=_common_shape)
converted: Final = RowRule(each_element.rule, values=_converted)
