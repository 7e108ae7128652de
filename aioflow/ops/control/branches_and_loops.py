"""`cond`, `case`, `switch_case` and `while_loop`, built as in TensorFlow 1 from Switch, Merge and loop frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.composite import CompositeTensor
from aioflow.graph.default_graph import graph_of
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.shapes import format_dims
from aioflow.graph.tensor_like import SupportsTensor
from aioflow.memory.values import Array
from aioflow.ops import nest
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_list
from aioflow.ops.control.contexts import CondContext
from aioflow.ops.control.loop_building import LoopBuilder, tensor_of, with_tensor
from aioflow.ops.control.primitives import Assert
from aioflow.ops.core import identity
from aioflow.ops.scoping import name_scope

if TYPE_CHECKING:
    from aioflow.ops.array.tensor_array import TensorArray
    from aioflow.ops.sparse.tensor import SparseTensor

__all__ = ["case", "cond", "switch_case", "while_loop"]


# One result of a branch or a loop body. (A node stands for a tensor that is computed after it.)
_Leaf: TypeAlias = Tensor | SupportsTensor | Operation | Array | np.generic | complex | str | bytes
_Composite = TypeVar("_Composite", "SparseTensor", "IndexedSlices", "TensorArray")
_F = TypeVar("_F")
_Key = TypeVar("_Key")


@overload
def cond(
    pred: TensorLike,
    true_fn: Callable[[], _Leaf],
    false_fn: Callable[[], _Leaf],
    strict: bool = False,
    name: str | None = None,
) -> Tensor: ...


@overload
def cond(
    pred: TensorLike,
    true_fn: Callable[[], _Composite],
    false_fn: Callable[[], _Composite],
    strict: bool = False,
    name: str | None = None,
) -> _Composite: ...


@overload
def cond(
    pred: TensorLike,
    true_fn: Callable[[], tuple[_Leaf, _Leaf]],
    false_fn: Callable[[], tuple[_Leaf, _Leaf]],
    strict: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...


@overload
def cond(
    pred: TensorLike,
    true_fn: Callable[[], tuple[_Leaf, _Leaf, _Leaf]],
    false_fn: Callable[[], tuple[_Leaf, _Leaf, _Leaf]],
    strict: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...


@overload
def cond(
    pred: TensorLike,
    true_fn: Callable[[], dict[_Key, Tensor]],
    false_fn: Callable[[], dict[_Key, Tensor]],
    strict: bool = False,
    name: str | None = None,
) -> dict[_Key, Tensor]: ...


@overload
def cond(
    pred: TensorLike,
    true_fn: Callable[[], object] | None = None,
    false_fn: Callable[[], object] | None = None,
    strict: bool = False,
    name: str | None = None,
    fn1: Callable[[], object] | None = None,
    fn2: Callable[[], object] | None = None,
) -> Any: ...


def cond(
    pred: TensorLike,
    true_fn: Callable[[], object] | None = None,
    false_fn: Callable[[], object] | None = None,
    strict: bool = False,
    name: str | None = None,
    fn1: Callable[[], object] | None = None,
    fn2: Callable[[], object] | None = None,
) -> object:
    """Return the results of `true_fn` if `pred` holds, otherwise those of `false_fn`. Only that branch's nodes run.

    Nodes made before the call belong to no branch: they run in either case.

    Args:
        pred: A bool scalar tensor.
        true_fn: Makes tensors, or nested lists, tuples and dicts of them.
        false_fn: Makes results of the same structure and dtypes.
        strict: Whether a list or tuple (a named one, too) of one tensor is returned as such, and not as the tensor.
        name: Name scope of the nodes.
        fn1: Old name of `true_fn`.
        fn2: Old name of `false_fn`.

    Raises:
        DTypeError: `pred` is a Python bool, or not bool; a function is not callable; the two make different
            structures or dtypes. (Indices of slices of int32 and int64 become int64.)
        InvalidArgumentError: a function returns nothing.
    """
    if_true, if_false = (_callable(a, b) for a, b in ((true_fn, fn1), (false_fn, fn2)))
    # A Python bool is known while the graph is built, so a cond on it is probably a mistake. TensorFlow raises, too.
    if isinstance(pred, bool):
        raise DTypeError("pred must not be a Python bool: write an if", expected="a bool tensor", actual=pred)
    graph = graph_of([pred])
    with name_scope(name, "cond", [pred]):
        # The predicate is also the data of this Switch. Its outputs only serve as pivots, one alive on each side.
        side_false, side_true = make_list("Switch", *[convert_to_tensor(pred, dtypes.bool_, name="pred")] * 2)
        pivots = [identity(side_false, name="switch_f"), identity(side_true, name="switch_t")]
        # A copy of the predicate outside of both branches, which the Switches of captured tensors read.
        chosen = identity(side_true.op.inputs[0], name="pred_id")
        # One of the two pivots is dead in every step, and a dead tensor cannot be fetched.
        for op in (side_true.op, pivots[0].op, pivots[1].op, chosen.op):
            graph.prevent_fetching(op)
        false_side, true_side = CondContext.pair(chosen, [p.op for p in pivots])
        made_true = _branch(true_side, if_true, "true_fn", strict)
        made_false = _branch(false_side, if_false, "false_fn", strict)
        nest.check_same_structure(made_true, made_false, "true_fn and false_fn return different structures")
        return _merged(_widened(true_side, made_true, made_false), _widened(false_side, made_false, made_true))


def _callable(function: Any, older: Any) -> Callable[[], object]:
    if (function is None) == (older is None):
        raise DTypeError(
            "cond needs true_fn and false_fn", expected="two functions", actual=f"{function!r} and {older!r}"
        )
    chosen: Callable[[], object] = older if function is None else function
    if not callable(chosen):
        raise DTypeError("not a function", expected="a function without arguments", actual=repr(chosen))
    return chosen


def _branch(context: CondContext, function: Callable[[], object], what: str, strict: bool) -> object:
    """Call the function inside the context. Return its results, a structure of tensors and tensor arrays."""
    with context.opened():
        made = function()
        if made is None:
            raise InvalidArgumentError(f"{what} must return something", expected="tensors or nodes", actual=None)
        made = _unpacked(made, strict)
        leaves = [_result(context, leaf) for leaf in nest.flatten(made)]
        if not leaves:
            raise InvalidArgumentError(f"{what} must return something", expected="at least one", actual=repr(made))
        return nest.pack(made, leaves)


def _unpacked(made: object, strict: bool) -> object:
    """Return the item of a list or tuple of length one, unless `strict`; other results as they are."""
    return made[0] if not strict and isinstance(made, list | tuple) and len(made) == 1 else made


def _result(context: CondContext, value: object) -> object:
    """Return one result of a branch as a tensor. A node is replaced by a copy of the pivot that waits for it."""
    # A node has no output to merge, so the branch's result is the pivot, which is alive exactly here.
    if isinstance(value, Operation):
        pivot = context.pivot
        source = context.pred if pivot is None else pivot.outputs[0]
        with context.graph.control_dependencies([value]):
            return identity(source)
    tensor = tensor_of(value)
    # An outside tensor that a branch returns unchanged passes through a Switch, too, or the Merge would get two
    # values.
    return with_tensor(value, context.capture(tensor))


def _widened(context: CondContext, made: Any, other: Any) -> object:
    """Return the results of a branch, with int32 indices of slices cast to int64 if the other branch's are int64."""
    if isinstance(made, IndexedSlices):
        # Nothing else is widened: for other results different dtypes are an error of the user.
        if (made.indices.dtype, other.indices.dtype) != (dtypes.int32, dtypes.int64) or made.dense_shape is not None:
            return made
        with context.opened():
            return IndexedSlices(made.values, make("Cast", made.indices, DstT=dtypes.int64))
    if not nest.is_nested(made) or isinstance(made, CompositeTensor):
        return made
    pairs = zip(nest.items(made), nest.items(other), strict=True)
    return nest.pack(made, [leaf for pair in pairs for leaf in nest.flatten(_widened(context, *pair))])


def _merged(made_true: object, made_false: object) -> object:
    merged: list[object] = []
    for x, y in zip(nest.flatten(made_true), nest.flatten(made_false), strict=True):
        if_true, if_false = tensor_of(x), tensor_of(y)
        if if_true.dtype is not if_false.dtype or type(x) is not type(y):
            raise DTypeError(
                "true_fn and false_fn return different dtypes; convert one of them with aioflow.cast",
                expected=repr(if_true),
                actual=repr(if_false),
            ).at(if_false.op.name, if_false.op.type, if_false.op.source)
        # The order of a Switch's outputs: false, then true.
        merged.append(with_tensor(x, make_list("Merge", [if_false, if_true])[0]))
    return nest.pack(made_true, merged)


@overload
def case(
    pred_fn_pairs: Sequence[tuple[Tensor, Callable[[], _Leaf]]] | Mapping[Tensor, Callable[[], _Leaf]],
    default: Callable[[], _Leaf] | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> Tensor: ...


@overload
def case(
    pred_fn_pairs: Sequence[tuple[Tensor, Callable[[], object]]] | Mapping[Tensor, Callable[[], object]],
    default: Callable[[], object] | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> Any: ...


def case(
    pred_fn_pairs: object,
    default: Callable[[], object] | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> object:
    """Return the results of the function of the first predicate that holds.

    Args:
        pred_fn_pairs: Pairs of a bool scalar tensor and a function, or a dict of them.
        default: The function to use if no predicate holds; without it the step fails in that case.
        exclusive: Whether the step fails if more than one predicate holds.
        strict: See `cond`.
        name: Name scope of the nodes.

    Raises:
        DTypeError, InvalidArgumentError: the pairs are malformed, or an error of `cond` occurs.
    """
    pairs = _pairs(pred_fn_pairs)
    graph = pairs[0][0].graph
    with graph.as_default(), graph.name_scope(name):
        predicates = [pred for pred, _ in pairs]
        last = default
        # Without a default the last pair takes its place, behind a check that its predicate holds.
        if last is None:
            *pairs, (pred, function) = pairs
            last = partial(_checked, pred, function, predicates)
        # The last pair is the innermost cond, so the first predicate that holds decides.
        for pred, function in reversed(pairs):
            last = partial(cond, pred, function, last, strict)
        if not exclusive:
            return _run_default(last, strict) if not pairs else last()
        # Nodes made inside the branches wait for the check through the pivots.
        with graph.control_dependencies([_at_most_one(predicates)]):
            return _run_default(last, strict) if not pairs else last()


def _run_default(function: Callable[[], object], strict: bool) -> object:
    return nest.map_structure(lambda leaf: with_tensor(leaf, tensor_of(leaf)), _unpacked(function(), strict))


def _pairs(pairs: object) -> list[tuple[Tensor, Callable[[], object]]]:
    items = list(pairs.items()) if isinstance(pairs, Mapping) else pairs
    if not isinstance(items, list | tuple) or not items:
        raise DTypeError("case needs pairs", expected="a list of (pred, function), or a dict", actual=repr(pairs))
    for item in items:
        if not isinstance(item, tuple) or len(item) != 2:
            raise DTypeError("not a pair", expected="(pred, function)", actual=repr(item))
        if not isinstance(item[0], Tensor) or item[0].dtype is not dtypes.bool_:
            raise DTypeError("a predicate must be a bool tensor", expected="a bool tensor", actual=repr(item[0]))
        if not callable(item[1]):
            raise DTypeError("not a function", expected="a function without arguments", actual=repr(item[1]))
    return list(items)


def _checked(pred: Tensor, function: Callable[[], object], predicates: list[Tensor]) -> object:
    """Build the last case, whose predicate must hold because there is no default."""
    message = convert_to_tensor(b"none of the conditions of case holds: ")
    check = Assert(pred, [message, *predicates], summarize=len(predicates))
    with pred.graph.control_dependencies([check]):
        return nest.map_structure(
            lambda leaf: leaf if isinstance(leaf, Operation) else with_tensor(leaf, identity(tensor_of(leaf))),
            function(),
        )


def _at_most_one(predicates: list[Tensor]) -> Operation:
    stacked = make("Pack", predicates, axis=0)
    # Sum does not take bools, so they are counted as int32.
    count = make("Sum", make("Cast", stacked, DstT=dtypes.int32), convert_to_tensor([0]))
    message = convert_to_tensor(b"more than one condition of an exclusive case holds: ")
    return Assert(make("LessEqual", count, convert_to_tensor(1)), [message, stacked], summarize=len(predicates))


_Branches: TypeAlias = Sequence[_F] | Mapping[int, _F] | Sequence[tuple[int, _F]]


@overload
def switch_case(
    branch_index: TensorLike,
    branch_fns: _Branches[Callable[[], _Leaf]],
    default: Callable[[], _Leaf] | None = None,
    name: str = "switch_case",
) -> Tensor: ...


@overload
def switch_case(
    branch_index: TensorLike,
    branch_fns: _Branches[Callable[[], object]],
    default: Callable[[], object] | None = None,
    name: str = "switch_case",
) -> Any: ...


def switch_case(
    branch_index: TensorLike, branch_fns: object, default: Callable[[], object] | None = None, name: str = "switch_case"
) -> object:
    """Return the results of the function of that index.

    Args:
        branch_index: An int32 scalar.
        branch_fns: A list of functions, a dict from index to function, or a list of such pairs.
        default: The function for every other index; if not given, the function of the highest index.
        name: Name scope of the nodes.

    Raises:
        DTypeError, InvalidArgumentError: the functions are malformed, or an error of `cond` occurs.
    """
    branches = _numbered(branch_fns)
    graph = graph_of([branch_index])
    with graph.as_default(), graph.name_scope(name):
        index = convert_to_tensor(branch_index, dtypes.int32, name="branch_index")
        last = default
        if last is None:
            last = branches[-1][1]
            branches = branches[:-1]
        if not branches:
            return _run_default(last, strict=False)
        for key, function in reversed(branches):
            last = partial(cond, make("Equal", index, convert_to_tensor(key)), function, last)
        return last()


def _numbered(branch_fns: Any) -> list[tuple[int, Callable[[], object]]]:
    items = branch_fns.items() if isinstance(branch_fns, Mapping) else branch_fns
    if not isinstance(branch_fns, list | tuple | Mapping) or not branch_fns:
        raise DTypeError("no branches", expected="a list or a dict of functions", actual=repr(branch_fns))
    # Callables alone are numbered by their places. Otherwise each item must be a pair.
    branches = list(enumerate(items)) if all(callable(item) for item in items) else list(items)
    for item in branches:
        # `type(…) is int`, because a bool is an int and must not be an index.
        pair = isinstance(item, tuple) and len(item) == 2 and type(item[0]) is int and callable(item[1])
        if not pair:
            raise DTypeError("not a branch", expected="(int, function)", actual=repr(item))
    branches.sort(key=lambda pair: pair[0])
    keys = [key for key, _ in branches]
    if len(set(keys)) != len(keys):
        raise InvalidArgumentError("an index has two branches", expected="distinct indices", actual=keys)
    return branches


@overload
def while_loop(
    cond: Callable[..., TensorLike],
    body: Callable[..., object],
    loop_vars: tuple[_Leaf, _Leaf],
    shape_invariants: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
    maximum_iterations: TensorLike | None = None,
    return_same_structure: bool = False,
) -> tuple[Tensor, Tensor]: ...


@overload
def while_loop(
    cond: Callable[..., TensorLike],
    body: Callable[..., object],
    loop_vars: tuple[_Leaf, _Leaf, _Leaf],
    shape_invariants: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
    maximum_iterations: TensorLike | None = None,
    return_same_structure: bool = False,
) -> tuple[Tensor, Tensor, Tensor]: ...


@overload
def while_loop(
    cond: Callable[..., TensorLike],
    body: Callable[..., object],
    loop_vars: tuple[_Leaf],
    shape_invariants: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
    maximum_iterations: TensorLike | None = None,
    return_same_structure: Literal[False] = False,
) -> Tensor: ...


@overload
def while_loop(
    cond: Callable[..., TensorLike],
    body: Callable[..., object],
    loop_vars: object,
    shape_invariants: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
    maximum_iterations: TensorLike | None = None,
    return_same_structure: bool = False,
) -> Any: ...


def while_loop(
    cond: Callable[..., object],
    body: Callable[..., object],
    loop_vars: object,
    shape_invariants: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
    maximum_iterations: TensorLike | None = None,
    return_same_structure: bool = False,
) -> object:
    """Run `body` as long as `cond` holds.

    Iterations overlap where the data allows. Nodes made before the loop and read inside run once, before it.

    Args:
        cond: A function of the loop variables that returns a bool scalar.
        body: A function of the loop variables that returns their new values, in the same structure.
        loop_vars: A list, tuple or other structure of tensors, tensor arrays and values to start from.
        shape_invariants: For each loop variable (same structure) a static shape that holds in all iterations; by
            default the static shape of its start value.
        parallel_iterations: Maximum number of iterations in progress at once.
        back_prop: Whether gradients flow through the loop. A step keeps the values for them only if it needs them.
        swap_memory: Whether values kept for gradients may move to host memory; on the CPU they are there already.
        name: Name scope of the nodes.
        maximum_iterations: Upper bound of the number of iterations.
        return_same_structure: Whether a single loop variable is returned in a structure like `loop_vars`, too.

    Returns:
        The values of the loop variables when `cond` no longer holds.

    Raises:
        DTypeError: `cond` or `body` is not callable, `loop_vars` is not a structure, a dtype changes, or
            `parallel_iterations` is not a positive int.
        InvalidArgumentError: there are no loop variables, the structures differ, a static shape changes, or
            `maximum_iterations` is not a scalar.
    """
    for what in (cond, body):
        if not callable(what):
            raise DTypeError("not a function", expected="cond and body as functions", actual=repr(what))
    if not nest.is_nested(loop_vars) or not nest.flatten(loop_vars):
        kind = InvalidArgumentError if nest.is_nested(loop_vars) else DTypeError
        raise kind("no loop variables", expected="a non-empty list", actual=repr(loop_vars))
    _check_parallel(parallel_iterations)
    graph = graph_of(nest.flatten(loop_vars))
    with name_scope(name, "while", nest.flatten(loop_vars)):
        bound = _bound(maximum_iterations)
        builder = LoopBuilder(graph, loop_vars, shape_invariants, bound)
        builder.configure(parallel_iterations, back_prop, swap_memory)
        results = builder.build(cond, body)
    # TensorFlow returns a lone loop variable itself, and not a list of one.
    if return_same_structure or len(nest.flatten(results)) > 1:
        return results
    return results[0] if isinstance(results, list | tuple) else nest.flatten(results)[0]


def _check_parallel(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DTypeError("parallel_iterations must be positive", expected="an int >= 1", actual=repr(value))


def _bound(maximum: TensorLike | None) -> Tensor | None:
    if maximum is None:
        return None
    tensor = convert_to_tensor(maximum, name="maximum_iterations")
    if tensor.dims not in ((), None):
        raise InvalidArgumentError(
            "maximum_iterations must be a scalar", expected="shape ()", actual=format_dims(tensor.dims)
        )
    return tensor
