"""Staging areas: they hold the input of the next step while the current step computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes as _dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DType, DTypeLike
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import define_op
from aioflow.graph.scopes import current_scope
from aioflow.graph.shapes import Dims, ShapeLike, TensorShape, dims_of, format_dims, merge_dims
from aioflow.graph.traits import waiting
from aioflow.ops.apply import TensorLike, convert_to_tensor, make_op
from aioflow.ops.core import scalar

__all__ = ["StagingArea"]

_AREA = [
    "capacity: int >= 0 = 0",
    "memory_limit: int >= 0 = 0",
    "dtypes: list(type) >= 1",
    "container: string = ''",
    "shared_name: string = ''",
]
_ANY_TYPES = [a.removesuffix(" >= 1") for a in _AREA]

define_op("Stage", "values: list:dtypes", "", _AREA, traits=waiting(tells_step=True))
define_op("Unstage", "", "values: list:dtypes", _AREA, traits=waiting(tells_step=True, takes_away=True))
define_op("StagePeek", "index: int32", "values: list:dtypes", _AREA, traits=waiting(tells_step=True))
define_op("StageSize", "", "size: int32", _ANY_TYPES, shape=scalar, traits=waiting(tells_step=True))
define_op("StageClear", "", "", _ANY_TYPES, traits=waiting())
not_differentiable("Stage", "Unstage", "StagePeek", "StageSize", "StageClear")


class StagingArea:
    """A queue of elements, which are tuples of tensors; a step can take the first element or peek at any.

    Args:
        dtypes: One dtype per component.
        shapes: One static shape per component, or None.
        names: Names of the components, or None. With names, elements are dictionaries.
        shared_name: Areas with the same name, in any session of a worker, are the same.
        capacity: Number of elements beyond which puts wait; 0 for no limit.
        memory_limit: Number of bytes beyond which puts wait; 0 for no limit.
    """

    def __init__(
        self,
        dtypes: Sequence[DTypeLike],
        shapes: Sequence[ShapeLike | None] | None = None,
        names: Sequence[str] | None = None,
        shared_name: str | None = None,
        capacity: int = 0,
        memory_limit: int = 0,
    ) -> None:
        graph = default_graph()
        self._dtypes = [_dtypes.as_dtype(t) for t in dtypes]
        self._dims: list[Dims] = [None] * len(self._dtypes) if shapes is None else [dims_of(s) for s in shapes]
        self._names = None if names is None else list(names)
        for listed, what in ((self._dims, "shape"), (self._names or self._dtypes, "name")):
            if len(listed) != len(self._dtypes):
                raise InvalidArgumentError(
                    f"a staging area needs one {what} per component", expected=len(self._dtypes), actual=len(listed)
                )
        if capacity < 0 or memory_limit < 0:
            raise InvalidArgumentError("a limit is negative", expected=">= 0", actual=(capacity, memory_limit))
        self._capacity = capacity
        self._memory_limit = memory_limit
        # The nodes of an area find it by this name: they have no handle.
        self._name = shared_name or graph.unique_name("StagingArea")
        self._container = current_scope(graph).container

    @property
    def name(self) -> str:
        """Name under which the area is stored."""
        return self._name

    @property
    def dtypes(self) -> list[DType]:
        """Dtypes of the components."""
        return list(self._dtypes)

    @property
    def shapes(self) -> list[TensorShape]:
        """Static shapes of the components."""
        return [TensorShape(dims) for dims in self._dims]

    @property
    def names(self) -> list[str] | None:
        """Names of the components, or None."""
        return None if self._names is None else list(self._names)

    @property
    def capacity(self) -> int:
        """Number of elements beyond which puts wait; 0 for no limit."""
        return self._capacity

    @property
    def memory_limit(self) -> int:
        """Number of bytes beyond which puts wait; 0 for no limit."""
        return self._memory_limit

    def put(self, values: TensorLike | Mapping[str, TensorLike], name: str | None = None) -> Operation:
        """Return an operation that appends one element; it waits while the area is full.

        Args:
            values: A list of components, a dictionary if the area has names, or the only component.
            name: Name of the node.

        Raises:
            ResourceExhaustedError: at run time, the element alone is larger than `memory_limit`.
        """
        return self._node("Stage", "put", name, self._components(values))

    def get(self, name: str | None = None) -> Any:
        """Remove and return the first element, as a list or dictionary of components.

        The node waits while the area is empty.
        """
        return self._element(list(self._node("Unstage", "get", name).outputs))

    def peek(self, index: TensorLike, name: str | None = None) -> Any:
        """Return the element at `index` without removing it; the node waits until it exists.

        Raises:
            InvalidArgumentError: at run time, `index` is negative.
        """
        node = self._node("StagePeek", "peek", name, convert_to_tensor(index, _dtypes.int32))
        return self._element(list(node.outputs))

    def size(self, name: str | None = None) -> Tensor:
        """Return the number of elements, an int32 scalar."""
        return self._node("StageSize", "size", name).outputs[0]

    def clear(self, name: str | None = None) -> Operation:
        """Return an operation that drops all elements. Waiting puts then complete."""
        return self._node("StageClear", "clear", name)

    def _node(self, op_type: str, what: str, name: str | None, *inputs: TensorLike) -> Operation:
        return make_op(
            op_type,
            *inputs,
            dtypes=self._dtypes,
            capacity=self._capacity,
            memory_limit=self._memory_limit,
            container=self._container,
            shared_name=self._name,
            name=name or f"{self._name}_{what}",
        )

    def _components(self, values: Any) -> list[Tensor]:
        if isinstance(values, Mapping) != (self._names is not None):
            raise InvalidArgumentError(
                "the elements of a staging area with names must be dictionaries",
                expected=self._names or "a list",
                actual=type(values).__name__,
            )
        if self._names is not None:
            if set(values) != set(self._names):
                raise InvalidArgumentError(
                    "the keys are not the names of the components", expected=self._names, actual=sorted(values)
                )
            values = [values[key] for key in self._names]
        items = list(values) if isinstance(values, list | tuple) else [values]
        if len(items) != len(self._dtypes):
            raise InvalidArgumentError(
                "the element has the wrong number of components", expected=len(self._dtypes), actual=len(items)
            )
        tensors = [convert_to_tensor(v, t) for v, t in zip(items, self._dtypes, strict=True)]
        for tensor, dims in zip(tensors, self._dims, strict=True):
            try:
                merge_dims(tensor.dims, dims)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(
                    f"{tensor.name!r} does not fit the staging area",
                    expected=format_dims(dims),
                    actual=format_dims(tensor.dims),
                ) from error
        return tensors

    def _element(self, tensors: Sequence[Tensor]) -> object:
        for tensor, dims in zip(tensors, self._dims, strict=True):
            # The ops infer no shapes; `put` has checked those of the area.
            tensor.set_shape(dims)
        return list(tensors) if self._names is None else dict(zip(self._names, tensors, strict=True))
