"""The construction of `while_loop`: Enter, Merge, LoopCond, Switch, the body, NextIteration and its back edge, Exit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.composite import CompositeTensor
from aioflow.graph.graph import Graph, Tensor
from aioflow.graph.shapes import Dims, dims_of, format_dims
from aioflow.ops import nest
from aioflow.ops.apply import constant, convert_to_tensor, make
from aioflow.ops.control.contexts import LoopVariable, WhileContext


def tensor_of(value: Any, like: Tensor | None = None) -> Tensor:
    """Return the tensor that carries a leaf through the loop: the flow of a tensor array, otherwise the leaf itself."""
    flow = getattr(value, "flow", None)
    if isinstance(flow, Tensor):
        return flow
    return convert_to_tensor(value, dtype_hint=None if like is None else like.dtype)


def with_tensor(value: object, tensor: Tensor) -> Any:
    """Return the leaf with the value that `tensor` carries."""
    with_flow = getattr(value, "with_flow", None)
    return tensor if with_flow is None else with_flow(tensor)


class LoopBuilder:
    """The construction of one `while_loop`.

    Raises:
        InvalidArgumentError: the shape invariants do not fit the loop variables.
    """

    def __init__(self, graph: Graph, loop_vars: object, shape_invariants: object, maximum: Tensor | None) -> None:
        self._graph = graph
        self._leaves = nest.flatten(loop_vars)
        self._structure = nest.pack(loop_vars, self._leaves)
        self._maximum = maximum
        self._starts = [tensor_of(leaf) for leaf in self._leaves]
        self._invariants = self._shapes(shape_invariants)
        # The name scope is unique in the graph, and so is the name of the frame.
        self._context: WhileContext = WhileContext(graph, graph.get_name_scope())

    def configure(self, parallel_iterations: int, back_prop: bool, swap_memory: bool) -> None:
        """Set the attributes that tell the runtime how to run the loop."""
        self._context.parallel_iterations = parallel_iterations
        self._context.back_prop = back_prop
        self._context.swap_memory = swap_memory
        self._context.maximum_iterations = self._maximum

    def build(self, condition: Callable[..., object], body: Callable[..., object]) -> object:
        """Make the nodes of the loop. Return its results, in the structure that `body` returns."""
        context, starts, shapes = self._context, self._starts, self._invariants
        if self._maximum is not None:
            # The counter must be the first variable: `trip_count` relies on it.
            zero = constant(0, self._maximum.dtype, name="iteration_counter")
            starts, shapes = [zero, *starts], [(), *shapes]
        variables = context.begin(starts, shapes)
        with context.opened():
            context.decide(self._predicate(condition))
            made, results = self._body(body, [v.inside for v in variables])
            for variable, following in zip(variables, results, strict=True):
                _check_unchanged(variable, following)
                context.close(variable, following)
        context.leave(variables)
        exits = [v.exit for v in variables[self._counters :]]
        return nest.pack(made, [with_tensor(leaf, t) for leaf, t in zip(nest.flatten(made), exits, strict=True)])

    @property
    def _counters(self) -> int:
        """The number of loop variables that precede the caller's: 1 with an upper bound, otherwise 0."""
        return 0 if self._maximum is None else 1

    def _packed(self, tensors: Sequence[Tensor]) -> Any:
        leaves = [with_tensor(leaf, t) for leaf, t in zip(self._leaves, tensors[self._counters :], strict=True)]
        return nest.pack(self._structure, leaves)

    def _call(self, function: Callable[..., object], tensors: Sequence[Tensor]) -> Any:
        packed = self._packed(tensors)
        if isinstance(packed, list | tuple):
            return function(*packed)
        return function(**packed) if isinstance(packed, dict) else function(*packed.values())

    def _predicate(self, condition: Callable[..., object]) -> Tensor:
        merges = [v.merge for v in self._context.variables]
        wanted = convert_to_tensor(self._call(condition, merges))
        if wanted.dtype is not dtypes.bool_:
            raise DTypeError("cond must return a bool scalar", expected="bool", actual=repr(wanted)).at(
                wanted.op.name, wanted.op.type, wanted.op.source
            )
        if self._maximum is None:
            return wanted
        return make("LogicalAnd", make("Less", merges[0], self._maximum), wanted)

    def _body(self, body: Callable[..., object], inside: Sequence[Tensor]) -> tuple[Any, list[Tensor]]:
        """Call the body. Return its results, and the tensors that carry them to the next iteration."""
        counted = [make("AddV2", inside[0], constant(1, inside[0].dtype))] if self._counters else []
        made = self._call(body, inside)
        # A single loop variable may be returned bare.
        if not nest.is_nested(made) or isinstance(made, CompositeTensor):
            made = [made]
        if nest.is_nested(made) and len(self._structure) == 1 and len(made) != 1:
            # The body of a single nested variable may return it without the list around it.
            made = [made]
        nest.check_same_structure(self._structure, made, "body does not return the structure of the loop variables")
        # A Python number that the body returns takes the dtype of the start value.
        results = [tensor_of(v, like) for v, like in zip(nest.flatten(made), self._starts, strict=True)]
        return made, [*counted, *(self._context.capture(t) for t in results)]

    def _shapes(self, given: object) -> list[Dims]:
        """Return the static shape of each loop variable that holds in all iterations."""
        if given is None:
            starts = iter(self._starts)
            return list(_kept_shapes(self._structure, starts))
        shapes = _shapes_like(self._structure, given)
        for start, dims in zip(self._starts, shapes, strict=True):
            if not _no_wider(start.dims, dims):
                raise InvalidArgumentError(
                    f"the shape invariant of {start.name!r} does not hold on entry",
                    expected=format_dims(dims),
                    actual=format_dims(start.dims),
                ).at(start.op.name, start.op.type, start.op.source)
        return shapes


def _check_unchanged(variable: LoopVariable, following: Tensor) -> None:
    """Raise an error if the body changes the dtype of a loop variable or widens its static shape."""
    before, origin = variable.merge, following.op
    name = variable.enter.op.inputs[0].name
    if following.dtype is not before.dtype:
        raise DTypeError(
            f"loop variable {name!r} changes its dtype", expected=before.dtype.name, actual=following.dtype.name
        ).at(origin.name, origin.type, origin.source)
    if not _no_wider(following.dims, before.dims):
        raise InvalidArgumentError(
            f"loop variable {name!r} has shape {format_dims(before.dims)} on entry but "
            f"{format_dims(following.dims)} after one iteration; use shape_invariants for sizes that may vary",
            expected=format_dims(before.dims),
            actual=format_dims(following.dims),
        ).at(origin.name, origin.type, origin.source)


def _no_wider(dims: Dims, bound: Dims) -> bool:
    """Return whether `bound` allows every shape that `dims` allows."""
    if bound is None:
        return True
    if dims is None or len(dims) != len(bound):
        return False
    return all(wanted is None or size == wanted for size, wanted in zip(dims, bound, strict=True))


def _kept_shapes(structure: object, starts: Iterator[Tensor]) -> Iterator[Dims]:
    """Yield the shapes of the leaves of `structure` in a loop without invariants; `starts` are the initial tensors."""
    if isinstance(structure, CompositeTensor):
        for dims in structure.kept_dims():
            next(starts)
            yield dims
    elif not nest.is_nested(structure):
        yield next(starts).dims
    else:
        for item in nest.items(structure):
            yield from _kept_shapes(item, starts)


def _shapes_like(structure: Any, shapes: Any) -> list[Dims]:
    """Return the shape for each leaf of `structure`, taken from the same place of `shapes`."""
    if isinstance(structure, CompositeTensor):
        return structure.component_dims(dims_of(shapes))
    if not nest.is_nested(structure):
        if isinstance(shapes, int):
            raise DTypeError("a shape invariant must be a shape", expected="a TensorShape or a list", actual=shapes)
        return [dims_of(shapes)]
    # `structure` drives the recursion, not `shapes`, because a shape may be a list itself.
    fits = nest.is_nested(shapes) and len(shapes) == len(structure)
    if not fits:
        raise InvalidArgumentError(
            "shape_invariants do not fit the loop variables",
            expected=nest.describe(structure),
            actual=repr(shapes),
        )
    if isinstance(structure, dict):
        return [s for key in sorted(structure) for s in _shapes_like(structure[key], shapes[key])]
    return [s for part, own in zip(structure, shapes, strict=True) for s in _shapes_like(part, own)]
