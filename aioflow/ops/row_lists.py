"""Row rules for ops on lists of tensors: the state of a list is the joint state of its elements."""

from __future__ import annotations

from typing import Final

from aioflow.graph.rows import FIXED, NOTHING, RowContext, RowDependence, RowRule, Rows, joined


def _new_list(ctx: RowContext) -> list[Rows]:
    """Return the states of a list without elements.

    The last output (for a tensor array, the flow) represents the elements.
    """
    if any(state.kind > RowDependence.FIXED for state in ctx.inputs):
        found = ctx.unknown("makes a list whose length depends on the rows")
        return [found] * len(ctx.op.outputs)
    return [FIXED] * (len(ctx.op.outputs) - 1) + [NOTHING]


new_list: Final = RowRule(_new_list, always=True, makes_list=True)


def _element_of(ctx: RowContext, items: int, moved: int) -> Rows:
    """Return the state of an element of the list in input `items`, with its axes shifted by `moved`."""
    state = ctx.inputs[items]
    if any(each.kind > RowDependence.FIXED for i, each in enumerate(ctx.inputs) if i != items):
        return ctx.unknown("indexes a list with rows")
    return ctx.at(state.axis + moved, state.each) if state.is_rows else state


def element_at(items: int) -> RowRule:
    """Return the rule for ops that read an element of the list in input `items`."""

    def rule(ctx: RowContext) -> list[Rows]:
        found = _element_of(ctx, items, 0)
        return [ctx.inputs[items]] * (len(ctx.op.outputs) - 1) + [found]

    return RowRule(rule, always=True)


def stacked_list(items: int) -> RowRule:
    """Return the rule for ops that read several elements of the list in input `items` as one tensor."""
    return RowRule(lambda ctx: _element_of(ctx, items, 1), always=True)


def put_in_list(items: int, value: int) -> RowRule:
    """Return the rule for ops that put the input `value` into the list in input `items`."""

    def rule(ctx: RowContext) -> Rows:
        if any(each.kind > RowDependence.FIXED for i, each in enumerate(ctx.inputs) if i not in (items, value)):
            return ctx.unknown("indexes a list with rows")
        return joined([ctx.inputs[items], ctx.inputs[value]], ctx.op)

    return RowRule(rule, always=True, makes_list=True)


def list_of_rows(value: int, items: int | None = None) -> RowRule:
    """Return the rule for ops that make a list from the parts of the input `value` along its first axis.

    `items` is the index of the input with the list that receives them, if there is one.
    """

    def rule(ctx: RowContext) -> Rows:
        state = ctx.inputs[value]
        if state.is_rows:
            state = (
                ctx.at(state.axis - 1, state.each) if state.axis else ctx.unknown("turns each row into a list element")
            )
        return state if items is None else joined([ctx.inputs[items], state], ctx.op)

    return RowRule(rule, always=True, makes_list=True)
