"""Functions that pass a value to one of two consumers and join such values again, for graphs built without `cond`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from aioflow.arguments import check_kind
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.composite import CompositeTensor
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DTypeLike, as_dtype
from aioflow.graph.graph import Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.tensor_like import NodeLike
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_list
from aioflow.ops.core import identity
from aioflow.ops.scoping import name_scope

Switchable: TypeAlias = Tensor | CompositeTensor


class Merged(NamedTuple):
    """The result of `merge`.

    Attributes:
        output: The available input.
        value_index: Its index, an int32 scalar.
    """

    output: Any
    value_index: Tensor


def switch(
    data: TensorLike | CompositeTensor, pred: TensorLike, dtype: DTypeLike | None = None, name: str | None = None
) -> tuple[Any, Any]:
    """Pass `data` to the second result if `pred` is true, and to the first one otherwise.

    The other result is dead: nodes that need it do not run, and fetching it fails. `merge` joins the results.

    Args:
        data: A tensor, `IndexedSlices` or a `SparseTensor`. Of a variable, its value; pass `handle` for the variable
            itself.
        pred: A bool scalar.
        dtype: The dtype of `data`; by default that of the value.
        name: Name of the node.

    Returns:
        The pair (output if false, output if true).
    """
    with name_scope(name, "Switch", [data, pred]) as scope:
        value = _converted(data, dtype)
        condition = convert_to_tensor(pred, dtypes.bool_)
        if isinstance(value, Tensor):
            if_false, if_true = make_list("Switch", value, condition, name=scope)
            return if_false, if_true
        sides = zip(*(make_list("Switch", part, condition) for part in value.components), strict=True)
        if_not, if_so = (value.with_components(side) for side in sides)
        return if_not, if_so


def merge(inputs: Sequence[TensorLike | CompositeTensor], name: str | None = None) -> Merged:
    """Return the available one of `inputs`; of all others, the producers must be dead.

    Args:
        inputs: Tensors, or values of the same kind. Tensors among `IndexedSlices` are converted to these.
        name: Name of the node.

    Returns:
        The pair (output, value_index). Both are dead if no input is available.

    Raises:
        InvalidArgumentError: an input is None, or only some of the slices have a dense shape.
        DTypeError: the inputs are of several kinds.
    """
    check_kind(inputs, Iterable, "the inputs", "a list of tensors")
    if any(value is None for value in inputs):
        raise InvalidArgumentError("an input of the merge is None", expected="tensors", actual=inputs)
    with name_scope(name, "Merge", inputs) as scope:
        values = [_converted(value) for value in inputs]
        tensors = [value for value in values if isinstance(value, Tensor)]
        if len(tensors) == len(values):
            return Merged(*make_list("Merge", tensors, name=scope))
        composites = _of_one_kind(values)
        joined = [make_list("Merge", list(parts)) for parts in zip(*(c.components for c in composites), strict=True)]
        return Merged(composites[0].with_components([output for output, _ in joined]), joined[0][1])


def with_dependencies(
    dependencies: Sequence[NodeLike], output_tensor: TensorLike | CompositeTensor, name: str | None = None
) -> Any:
    """Return a tensor equal to `output_tensor` that is available only after `dependencies` have run.

    `output_tensor` itself may be computed before them; see `control_dependencies`.

    Args:
        dependencies: Nodes and tensors.
        output_tensor: A tensor, or a value that consists of tensors. Of `IndexedSlices`, only the values wait.
        name: Name of the node.
    """
    check_kind(dependencies, Iterable, "the dependencies", "a list of nodes or tensors")
    with name_scope(name, "control_dependency", [*dependencies, output_tensor]) as scope:
        graph = default_graph()
        with graph.colocate_with(getattr(output_tensor, "op", None)), graph.control_dependencies(dependencies):
            value = _converted(output_tensor)
            if isinstance(value, Tensor):
                return identity(value, name=scope)
            if isinstance(value, IndexedSlices):
                return value.with_values(identity(value.values, name=scope))
            return value.with_components([identity(part) for part in value.components])


def _converted(value: Any, dtype: DTypeLike | None = None) -> Switchable:
    if not isinstance(value, CompositeTensor):
        return convert_to_tensor(value, dtype)
    if dtype is not None and value.dtype is not as_dtype(dtype):
        raise DTypeError(f"{value!r} has another dtype", expected=as_dtype(dtype).name, actual=value.dtype.name)
    return value


def _of_one_kind(values: Sequence[Switchable]) -> list[CompositeTensor]:
    """Return the values, with tensors as slices if all others are slices."""
    composites: list[CompositeTensor] = [v for v in values if isinstance(v, CompositeTensor)]
    slices = [v for v in values if isinstance(v, IndexedSlices)]
    if slices and len(slices) == len(composites):
        composites = list(_as_slices(values))
    if len(composites) < len(values) or len({type(c) for c in composites}) > 1:
        kinds = ", ".join(type(v).__name__ for v in values)
        raise DTypeError("the inputs of a merge are of several kinds", expected="one kind", actual=kinds)
    if len({len(c.components) for c in composites}) > 1:
        raise InvalidArgumentError(
            "only some of the merged slices have a dense shape", expected="all or none", actual=repr(list(values))
        )
    return composites


def _as_slices(values: Sequence[Switchable]) -> list[IndexedSlices]:
    found = [v if isinstance(v, IndexedSlices) else _rows(v) for v in values if isinstance(v, IndexedSlices | Tensor)]
    if all(s.indices.dtype is dtypes.int32 for s in found):
        return found
    return [
        s
        if s.indices.dtype is dtypes.int64
        else IndexedSlices(s.values, make("Cast", s.indices, DstT=dtypes.int64), s.dense_shape)
        for s in found
    ]


def _rows(tensor: Tensor) -> IndexedSlices:
    shape = make("Shape", tensor)
    return IndexedSlices(tensor, make("Range", 0, make("Gather", shape, 0), 1), shape)
