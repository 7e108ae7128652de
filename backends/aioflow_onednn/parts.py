"""The contributions of oneDNN's kernels to the plan of a run of nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np

from aioflow.kernels.joinable import ConstantArgument, MemberArgument, given
from aioflow.memory.values import Array, Shape
from aioflow_onednn import convolutions, pooling
from aioflow_onednn.codes import Algorithm
from aioflow_onednn.convolutions import Prepared
from aioflow_onednn.filters import PackedFilter, packing
from aioflow_onednn.forward import SAMPLES, Forward, Method, choose_method
from aioflow_onednn.library import BoundCall, PostOps
from aioflow_onednn.magnitudes import FAR
from aioflow_onednn.plans import CallStep, Compute, Drawing, PlanOperand
from aioflow_onednn.pooling import PoolSpec
from aioflow_onednn.primitives import Primitive, address, plain

_FOR_A_TEAM: Final = 2**16  # numbers that the windows of a pool read, from which on several threads pay off


class PlanPart(Protocol):
    """The way in which a node is computed as a part of a plan."""

    def draw(self, drawing: Drawing, arguments: Sequence[MemberArgument], out: int) -> bool:
        """Add the steps that compute value `out`; return False, adding none, if that is impossible."""


class ConvPart:
    """A convolution with its epilogue and a constant filter.

    Args:
        of: Returns the convolution for the shapes of image and filter, if oneDNN computes it.
        kernel: The filter.
    """

    def __init__(self, of: Callable[[Shape, Shape], Forward | None], kernel: PackedFilter) -> None:
        self._of, self._kernel = of, kernel

    def draw(self, drawing: Drawing, arguments: Sequence[MemberArgument], out: int) -> bool:
        """Add the steps of the convolution and its epilogue, as `PlanPart.draw`."""
        image, kernel, *rest = arguments
        args = rest[0] if rest else ()
        if not isinstance(image, int) or not isinstance(kernel, ConstantArgument) or not isinstance(args, tuple):
            return False
        biases, others = args[:1], [each for each in args[1:] if isinstance(each, int)]
        forward = self._of(drawing.values[image].shape, kernel.value.shape)
        if forward is None or len(others) + len(biases) < len(args) or isinstance(next(iter(biases), None), int):
            return False
        shapes = [drawing.values[each].shape for each in others]
        if any(shape != forward.shape for shape in shapes) or drawing.values[out].shape != forward.shape:
            return False
        bias = next((plain(each.value) for each in biases if isinstance(each, ConstantArgument)), None)
        if bias is not None and (bias.shape != forward.shape[-1:] or bias.dtype != np.float32):
            return False
        return _Convolution(forward, self._kernel, bias, image, others, out).draw(drawing)


class _Convolution:
    """A convolution between values of a plan."""

    def __init__(
        self, forward: Forward, kernel: PackedFilter, bias: Array | None, image: int, others: Sequence[int], out: int
    ) -> None:
        self._forward, self._kernel, self._bias = forward, kernel, bias
        self._image, self._others, self._out = image, others, out

    def draw(self, drawing: Drawing) -> bool:
        """Add the steps, as `PlanPart.draw`."""
        forward, others, out = self._forward, self._others, self._out
        g, filters, _ = forward.of
        by = choose_method(g, filters, self._prepared(None))
        if by is Method.BLOCKS or not drawing.are_floats(self._image, *others, out):
            drawing.is_refused |= by is Method.BLOCKS and g.n >= SAMPLES  # takes so long that a plan gains nothing
            return False
        activated = forward.activated
        # This may add checks of the inputs to the plan, so it comes before the step that computes.
        if activated is not None and not activated.keeps_nan and not self._limit(drawing) < FAR:
            activated = None
        activation = None if activated is None else activated.activation
        adds = activation is not None and activation.adds
        drawing.add(self._compute(activation, adds, by is Method.TEAM))
        bound = self._known_limit(drawing)
        finish = forward.finish
        if activation is None and finish is not None:
            drawing.add(CallStep(lambda arrays: (finish, (arrays[out], *(arrays[i] for i in others))), (*others,), out))
            bound = math.inf
        drawing.values[out].bound = bound if activation is None else min(bound, _most(activation))
        return True

    def _prepared(self, activation: PostOps | None) -> Callable[[int], Prepared]:
        return lambda threads: convolutions.forward(*self._forward.of, activation, threads)

    def _compute(self, activation: PostOps | None, adds: bool, is_shared: bool) -> Compute:
        get = self._prepared(activation)

        def prepared(threads: int) -> tuple[Primitive, Sequence[PlanOperand]]:
            found = get(threads)
            operands: list[PlanOperand] = [self._image, packing(self._kernel, (found, 0)).array, self._out]
            operands += [] if self._bias is None else [self._bias]
            return found.primitive, operands + (list(self._others) if adds else [])

        return Compute(prepared, (self._image, *self._others), self._out, is_shared)

    def _limit(self, drawing: Drawing) -> float:
        """Return the bound of all numbers before the activation.

        If the known bounds of the inputs are not enough, add checks of the inputs to the plan.
        """
        for number in (self._image, *self._others):
            drawing.bound(number)
        limit = self._known_limit(drawing)
        if not limit < FAR:
            drawing.look(self._image)
            limit = self._known_limit(drawing)
        return limit

    def _known_limit(self, drawing: Drawing) -> float:
        """Return the bound that follows from the known bounds of the inputs.

        By the Cauchy-Schwarz inequality, the sum over a window is at most the product of the two L2 norms.
        """
        g, filters, _ = self._forward.of
        values = drawing.values
        # The L2 norm of a window is at most the largest number times the root of its size.
        window = values[self._image].bound * math.sqrt(g.kh * g.kw * filters.inputs)
        bias = 0.0 if self._bias is None else float(np.abs(self._bias).max(initial=0.0))
        limit = window * self._kernel.norm() + bias + sum(values[each].bound for each in self._others)
        return limit if limit < FAR else math.inf  # also turns NaN into infinity


def _most(activation: PostOps) -> float:
    return activation.beta if activation.algorithm is Algorithm.ELTWISE_CLIP else math.inf


class PoolPart:
    """A pool.

    Args:
        of: Returns the pool and the shape of its result for the shape of the image, if oneDNN computes it.
    """

    def __init__(self, of: Callable[[Shape], tuple[PoolSpec, Shape] | None]) -> None:
        self._of = of

    def draw(self, drawing: Drawing, arguments: Sequence[MemberArgument], out: int) -> bool:
        """Add the step of the pool, as `PlanPart.draw`."""
        [image] = arguments
        found = self._of(drawing.values[image].shape) if isinstance(image, int) else None
        if found is None or not isinstance(image, int) or drawing.values[out].shape != found[1]:
            return False
        pool, g = found[0], found[0].windows
        if not drawing.are_floats(image, out):
            return False
        is_max, number = pool.algorithm is Algorithm.POOLING_MAX, image
        # A mean is bounded as its numbers are. oneDNN's maximum ignores NaN, so there the numbers must be checked.
        bound = drawing.bound(image) if is_max else drawing.values[image].bound
        if is_max and not bound < FAR:
            return False

        def prepared(threads: int) -> tuple[Primitive, Sequence[PlanOperand]]:
            return pooling.prepared(pool, threads), (number, out)

        is_shared = g.rows * g.kh * g.kw * g.c >= _FOR_A_TEAM
        drawing.add(Compute(prepared, (number,), out, is_shared))
        drawing.values[out].bound = bound
        return True


class ConcatPart:
    """A concatenation along a constant axis."""

    def draw(self, drawing: Drawing, arguments: Sequence[MemberArgument], out: int) -> bool:
        """Add a copy for each array, as `PlanPart.draw`."""
        items, axis = arguments
        if not isinstance(items, tuple) or not isinstance(axis, ConstantArgument):
            return False
        # Constants among the arrays are left to the node's own function.
        numbers = [each for each in items if isinstance(each, int)]
        values, made = drawing.values, drawing.values[out]
        if len(numbers) < len(items) or any(values[each].dtype != made.dtype for each in numbers):
            return False
        at, begin = axis.value % len(made.shape), 0
        for each in numbers:
            end = begin + values[each].shape[at]
            drawing.add(CallStep(_copying(each, out, (*(slice(None),) * at, slice(begin, end))), (each,), out))
            begin = end
        made.bound = max(values[each].bound for each in numbers)
        return True


def _copying(source: int, target: int, part: tuple[slice, ...]) -> Callable[[Sequence[Array]], BoundCall]:
    return lambda arrays: (np.copyto, (arrays[target][part], arrays[source]))


def called(call: Callable[..., Any], arguments: Sequence[MemberArgument], out: int, takes_out: bool) -> CallStep:
    """Return the step of a node whose own function is called."""
    reads = tuple(i for item in arguments for i in (item if isinstance(item, tuple) else (item,)) if isinstance(i, int))

    def bound(arrays: Sequence[Array]) -> BoundCall:
        target = arrays[out]
        args, named = [given(item, arrays) for item in arguments], {"out": target} if takes_out else {}

        def run() -> bool:
            made = call(*args, **named)
            if made is target:
                return False
            # True stops the plan: the result is not the one that was planned, so the nodes are computed one by one.
            if made.shape != target.shape or made.dtype != target.dtype:
                return True
            target[...] = made
            return False

        return run, ()

    return CallStep(bound, reads, out)


def viewed(call: Callable[..., Any], arguments: Sequence[MemberArgument], source: int, out: int) -> CallStep:
    """Return the step of a node whose result is a view of its one source.

    Whether it is a view may depend on the numbers, so each run checks that.
    """

    def bound(arrays: Sequence[Array]) -> BoundCall:
        target = arrays[out]
        args = [given(item, arrays) for item in arguments]

        def run() -> bool:
            made = call(*args)
            is_same = made.shape == target.shape and made.dtype == target.dtype and made.flags.c_contiguous
            return not (is_same and address(made) == address(target))

        return run, ()

    return CallStep(bound, (source,))
