"""Rules for ops on lists of tensors: what is known of a list is what is known of its elements."""

from __future__ import annotations

from typing import Final

from aioflow.graph.rows import FIXED, NOTHING, Kind, RowContext, RowRule, Rows, joined

__all__ = ["element_at", "list_of_rows", "new_list", "put_in_list", "stacked_list"]


def _new_list(ctx: RowContext) -> list[Rows]:
    """Make a list without elements: its last output (of a tensor array, the flow) stands for them."""
    if any(state.kind > Kind.FIXED for state in ctx.inputs):
        found = ctx.unknown("makes a list whose length depends on the rows")
        return [found] * len(ctx.op.outputs)
    return [FIXED] * (len(ctx.op.outputs) - 1) + [NOTHING]


new_list: Final = RowRule(_new_list, always=True, makes_list=True)


def _element_of(ctx: RowContext, items: int, moved: int) -> Rows:
    """An element of the list at that position, or elements whose axes have moved by so many."""
    state = ctx.inputs[items]
    if any(each.kind > Kind.FIXED for i, each in enumerate(ctx.inputs) if i != items):
        return ctx.unknown("looks a list up by rows")
    return ctx.at(state.axis + moved, state.each) if state.is_rows else state


def element_at(items: int) -> RowRule:
    """Reads an element: the position of the list."""

    def rule(ctx: RowContext) -> list[Rows]:
        found = _element_of(ctx, items, 0)
        return [ctx.inputs[items]] * (len(ctx.op.outputs) - 1) + [found]

    return RowRule(rule, always=True)


def stacked_list(items: int) -> RowRule:
    """Reads several elements as one tensor: the position of the list."""
    return RowRule(lambda ctx: _element_of(ctx, items, 1), always=True)


def put_in_list(items: int, value: int) -> RowRule:
    """Puts an element into a list: the positions of both."""

    def rule(ctx: RowContext) -> Rows:
        if any(each.kind > Kind.FIXED for i, each in enumerate(ctx.inputs) if i not in (items, value)):
            return ctx.unknown("looks a list up by rows")
        return joined([ctx.inputs[items], ctx.inputs[value]], ctx.op)

    return RowRule(rule, always=True, makes_list=True)


def list_of_rows(value: int, items: int | None = None) -> RowRule:
    """Makes a list of the parts of a tensor along its first axis: its position, and that of a list for them."""

    def rule(ctx: RowContext) -> Rows:
        state = ctx.inputs[value]
        if state.is_rows:
            state = ctx.at(state.axis - 1, state.each) if state.axis else ctx.unknown("makes an element of each row")
        return state if items is None else joined([ctx.inputs[items], state], ctx.op)

    return RowRule(rule, always=True, makes_list=True)
