"""Kernels of the optimizers' updates, in place if there is no other reference to the variable, in cache-sized blocks.

One driver serves every rule of `optimizer_rules`, for whole gradients and for rows of them. A backend may register
another way to compute the passes (`register_updates`). An update of several variables (Adam's var, m and v) holds all
their locks at once, so that concurrent steps apply whole updates one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.dtypes import resource
from aioflow.graph.opdef import OPS
from aioflow.graph.shapes import format_dims
from aioflow.kernels.array.scatter import repeats
from aioflow.kernels.registry import Binding, binder
from aioflow.kernels.resources import Overwrites, VariableResource, update_together
from aioflow.kernels.variables.optimizer_rules import RULES, Scalars, UpdateRule
from aioflow.memory.values import Array, Namespace, NpDType

# Applies a rule: (namespace, rule, its prepared scalars, gradient, present values, arrays for the new values).
Passes: TypeAlias = Callable[[Namespace, UpdateRule, Scalars, Array, Sequence[Array], Sequence[Array]], None]

# Measured: while the arrays fit into the last-level cache, one pass after another over whole arrays is as fast as
# blocks; beyond that, blocks of this size take 30 % less time for Adam.
_WHOLE: Final = 1 << 20
_BLOCK: Final = 1 << 17


class _Scratch(threading.local):
    """Scratch arrays of one thread, kept between steps: fresh ones of this size would cost page faults each time."""

    def __init__(self) -> None:
        self._held: dict[NpDType, list[Array]] = {}

    def arrays(self, dtype: NpDType, count: int, size: int) -> list[Array]:
        """Return `count` flat arrays of `size` elements."""
        held = self._held.setdefault(dtype, [])
        if len(held) < count or held[0].size < size:
            # The largest request so far is kept; smaller ones get views.
            held[:] = [np.empty(size, dtype) for _ in range(max(count, len(held)))]
        return [a[:size] for a in held[:count]]


_SCRATCH: Final = _Scratch()


def _dense(
    passes: Passes,
    xp: Namespace,
    rule: UpdateRule,
    h: Scalars,
    gradient: Array,
    values: list[Array],
    outs: list[Array | None],
) -> list[Array]:
    """Return the new values of the variables for a gradient of their shape."""
    shape, dtype = gradient.shape, gradient.dtype
    for value in values:
        if value.shape != shape or value.dtype != dtype:
            raise _misfit(value, gradient, value.shape)
    # Blocks are slices of flat views, and an array of another layout has no flat view.
    news = [o if o is not None and o.flags.c_contiguous else xp.empty(shape, dtype) for o in outs]
    passes(xp, rule, h, gradient, values, news)
    return news


def in_passes(
    xp: Namespace, rule: UpdateRule, h: Scalars, gradient: Array, values: Sequence[Array], news: Sequence[Array]
) -> None:
    """Apply a rule by calling the namespace's functions one after the other; the default `Passes`."""
    shape, size = gradient.shape, gradient.size
    on_host: bool = isinstance(gradient, np.ndarray | np.generic)
    if not on_host:  # a GPU array, whose namespace pools memory
        rule.update(xp, values, news, gradient, [xp.empty(shape, gradient.dtype) for _ in range(rule.scratch)], h)
    elif size <= _WHOLE:
        scratch = _SCRATCH.arrays(gradient.dtype, rule.scratch, size)
        if len(shape) != 1:
            scratch = [s.reshape(shape) for s in scratch]
        rule.update(xp, values, news, gradient, scratch, h)
    else:
        _run_blocks(rule, h, gradient, values, news)


def _run_blocks(rule: UpdateRule, h: Scalars, gradient: Array, values: Sequence[Array], news: Sequence[Array]) -> None:
    flat_values = [v.reshape(-1) for v in values]
    flat_news = [n.reshape(-1) for n in news]
    flat_gradient = gradient.reshape(-1)
    scratch = _SCRATCH.arrays(gradient.dtype, rule.scratch, _BLOCK)
    for start in range(0, gradient.size, _BLOCK):
        stop = min(start + _BLOCK, gradient.size)
        rule.update(
            np,
            [v[start:stop] for v in flat_values],
            [n[start:stop] for n in flat_news],
            flat_gradient[start:stop],
            scratch if stop - start == _BLOCK else [s[: stop - start] for s in scratch],
            h,
        )


def _rows(
    passes: Passes,
    xp: Namespace,
    rule: UpdateRule,
    h: Scalars,
    gradient: Array,
    indices: Array,
    variables: Sequence[VariableResource],
    values: list[Array],
    outs: list[Array | None],
) -> list[Array]:
    """Return the new values of the variables for rows of the gradient, with repeated rows applied one after another."""
    if indices.ndim != 1:
        raise InvalidArgumentError("indices must be a vector", expected="rank 1", actual=format_dims(indices.shape))
    for value in values:
        if value.ndim < 1:
            raise InvalidArgumentError("rows of a scalar variable cannot be updated", expected="rank >= 1", actual="()")
        wanted = (len(indices), *value.shape[1:])
        if gradient.shape != wanted or value.dtype != gradient.dtype:
            raise _misfit(value, gradient, wanted)
        _check_range(xp, indices, len(value))
    for variable, out in zip(variables, outs, strict=True):
        if out is not None:
            # After all checks: from here on the rows are overwritten.
            variable.keep(indices)
    news = [value.copy() if out is None else out for value, out in zip(values, outs, strict=True)]
    for chosen in _waves(xp, indices):
        where = indices if chosen is None else indices[chosen]
        part = gradient if chosen is None else gradient[chosen]
        rows = [xp.take(new, where, axis=0) for new in news]  # takes a third of the time of new[where]
        # No rule reads v[i] after it has written o[i], so both may be the same rows.
        passes(xp, rule, h, part, rows, rows)
        for new, row in zip(news, rows, strict=True):
            new[where] = row
    return news


def _waves(xp: Namespace, indices: Array) -> list[Array | None]:
    """Return positions in `indices`, as waves without repeated indices: all first occurrences, all second ones, …."""
    count = len(indices)
    if not count:
        return []
    if not repeats(xp, indices):
        return [None]
    order = xp.argsort(indices, kind="stable")
    in_order = indices[order]
    is_first = xp.ones(count, bool)
    is_first[1:] = in_order[1:] != in_order[:-1]
    starts = xp.flatnonzero(is_first)
    occurrence = xp.arange(count) - starts[xp.cumsum(is_first) - 1]
    return [order[occurrence == wave] for wave in range(int(occurrence.max()) + 1)]


def _misfit(value: Array, gradient: Array, wanted: tuple[int, ...]) -> InvalidArgumentError:
    if value.dtype != gradient.dtype:
        return DTypeError(
            "the variable does not have the gradient's dtype", expected=gradient.dtype, actual=value.dtype
        )
    return InvalidArgumentError(
        "the gradient does not have the shape of the variable", expected=wanted, actual=gradient.shape
    )


def _check_range(xp: Namespace, indices: Array, size: int) -> None:
    if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= size):
        bad = int(xp.flatnonzero((indices < 0) | (indices >= size))[0])
        raise InvalidArgumentError(
            f"indices[{bad}] is out of range", expected=f"an index in [0, {size})", actual=int(indices[bad])
        )


def _bind(rule: UpdateRule, made: Callable[[Binding], Passes], binding: Binding) -> Callable[..., None]:
    """Return the body for one node. The op's signature tells variables, gradient, indices and scalars apart."""
    xp, on_host, passes = binding.xp, binding.is_host, made(binding)
    inputs = OPS.get(binding.op_type).inputs
    handles = sum(arg.dtype is resource for arg in inputs)  # the variables come first in every signature
    position = {arg.name: i for i, arg in enumerate(inputs)}
    gradient_at = position.get("grad", position.get("delta", 0))
    indices_at = position.get("indices")
    scalars = [(n, i) for n, i in position.items() if i >= handles and n not in ("grad", "delta", "indices")]
    options = {n: v for n, v in binding.attrs.items() if isinstance(v, bool)}

    def body(*args: Any) -> None:
        h: dict[str, Any] = dict(options)
        for name, i in scalars:
            value = args[i]
            if value.ndim:
                raise InvalidArgumentError(f"{name} is not a scalar", expected="()", actual=value.shape)
            h[name] = value[()] if on_host else value
        if rule.prepare is not None:
            h = rule.prepare(xp, h)
        gradient = args[gradient_at]
        if indices_at is None:
            update_together(args[:handles], partial(_dense, passes, xp, rule, h, gradient), Overwrites.WHOLE)
        else:
            variables = args[:handles]
            update_together(
                variables, partial(_rows, passes, xp, rule, h, gradient, args[indices_at], variables), Overwrites.ROWS
            )

    return body


def register_updates(made: Callable[[Binding], Passes], rules: Mapping[str, UpdateRule], **where: Any) -> None:
    """Register the kernels of these rules.

    Args:
        made: Makes the `Passes` of a node.
        rules: The rules, by the suffix of the op's name.
        where: Arguments of `binder` that limit the registration. By default any device, and the dtypes of the ops.
    """
    for name, rule in rules.items():
        kinds = "floats complexes" if name == "GradientDescent" else "floats"
        ops = {f"ResourceApply{name}": rule.looks}
        if rule.of_rows:
            # Every update of rows looks at the indices, to check them and to find repetitions.
            ops[f"ResourceSparseApply{name}"] = True
        for op, looks in ops.items():
            options = {"dtypes": {"T": kinds}, "synchronises": looks, **where}
            binder(op, takes=VariableResource, **options)(partial(_bind, rule, made))


register_updates(lambda binding: in_passes, RULES)
