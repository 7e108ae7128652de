"""`PartitionedVariable`: several variables, possibly on different devices, that together hold one value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.shapes import ShapeLike, TensorShape, dims_of, format_dims
from aioflow.graph.tensor_like import DenseLike
from aioflow.ops.apply import TensorLike, make, make_list, register_tensor_conversion_function
from aioflow.ops.core import identity
from aioflow.ops.variables.operators import TensorOperators
from aioflow.ops.variables.slices import SaveSliceInfo, partition_axis
from aioflow.ops.variables.variable import Variable

__all__ = ["PartitionedVariable"]


class PartitionedVariable(TensorOperators):
    """A variable in parts, as made by `get_variable(partitioner=…)`.

    As a tensor, it is the concatenation of its parts, so it supports operators and indexing. `nn.embedding_lookup`
    reads rows of the parts instead. Iteration yields the parts.

    Args:
        name: Name of the whole.
        shape: Sizes of the whole.
        dtype: The element type.
        variable_list: The parts, each with its position in the whole (`save_slice_info`).
        partitions: Number of parts along each axis.

    Raises:
        InvalidArgumentError: there are no parts, or they do not fit the shape.
        DTypeError: a part is not a variable.
    """

    def __init__(
        self,
        name: str,
        shape: ShapeLike,
        dtype: DType,
        variable_list: Sequence[Variable],
        partitions: Sequence[int],
    ) -> None:
        dims = dims_of(shape)
        if not variable_list:
            raise InvalidArgumentError("a partitioned variable needs parts", expected="at least one", actual="none")
        if dims is None or len(dims) != len(partitions) or any(count < 1 for count in partitions):
            raise InvalidArgumentError(
                f"the partitions do not fit {name}", expected=f"a number >= 1 for each of {dims}", actual=partitions
            )
        # A concatenation needs the parts in the order of their offsets.
        self._variable_list = sorted(variable_list, key=lambda part: _info(part, name, dims).var_offset)
        self._name = name
        self._dims = dims
        self._dtype = dtype
        self._partitions = list(partitions)

    @property
    def name(self) -> str:
        """Name of the whole; the parts are called `name/part_0` and so on."""
        return self._name

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self._dtype

    @property
    def graph(self) -> Graph:
        """The graph that the parts belong to."""
        return self._variable_list[0].graph

    @property
    def shape(self) -> TensorShape:
        """The static shape of the whole."""
        return TensorShape(self._dims)

    def get_shape(self) -> TensorShape:
        """Return the static shape of the whole."""
        return TensorShape(self._dims)

    @property
    def partitions(self) -> list[int]:
        """Number of parts along each axis."""
        return list(self._partitions)

    def __iter__(self) -> Iterator[Variable]:  # type: ignore[override]  # yields parts, where a tensor yields rows
        return iter(self._variable_list)

    def __len__(self) -> int:
        """Return the number of parts."""
        return len(self._variable_list)

    def __repr__(self) -> str:
        return (
            f"<aioflow.PartitionedVariable {self._name!r} shape={format_dims(self._dims)} dtype={self._dtype.name} "
            f"partitions={self._partitions}>"
        )

    def _as_graph_element(self) -> NoReturn:
        """Raise DTypeError, for a fetch or a feed of several variables."""
        # A concatenation would need new nodes, which a run may not add.
        first = self._variable_list[0].op
        raise DTypeError(
            f"the partitioned variable {self._name!r} is no element of the graph: it can be neither fetched nor fed",
            expected=f"list({self._name}) for its {len(self)} parts, or a tensor of the whole that is made before the "
            "run, by `as_tensor()`; to set it, a run of `assign(value)`",
            actual=repr(self),
        ).at(first.name, first.type, first.source)

    # Programs for TensorFlow call these two.

    def _get_variable_list(self) -> list[Variable]:
        return self._variable_list

    def _get_partitions(self) -> list[int]:
        return self._partitions

    def _partition_axes(self) -> list[int]:
        # A variable in one part counts as cut along the first axis.
        return [axis for axis, count in enumerate(self._partitions) if count > 1] or [0]

    def _axis(self) -> int:
        if len(self._partition_axes()) > 1:
            raise InvalidArgumentError(
                f"{self._name} is cut along several axes", expected="one axis", actual=self._partition_axes()
            )
        return partition_axis(self._partitions)

    # -- reading ----------------------------------------------------------------------------------------------------

    def as_tensor(self) -> Tensor:
        """Return the concatenation of the parts. It ignores the open control dependencies."""
        with self.graph.control_dependencies(None):
            return self.value()

    def value(self) -> Tensor:
        """Return the concatenation of the parts from new nodes, which wait for the open control dependencies."""
        graph, parts = self.graph, self._variable_list
        with graph.as_default(), graph.name_scope(None):
            joined: DenseLike = parts[0]
            if len(parts) > 1:
                with graph.name_scope(f"{self._name}/ConcatPartitions/"):
                    joined = make("ConcatV2", [part.value() for part in parts], self._axis(), name="concat")
            return identity(joined, name=self._name)

    # -- writing ----------------------------------------------------------------------------------------------------

    def assign(
        self,
        value: TensorLike | Sequence[TensorLike],
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Set each part to the corresponding part of `value`.

        Args:
            value: A tensor of the whole shape, or a value for each part, as a list or as a PartitionedVariable.
            use_locking: Ignored: updates are always atomic.
            name: Name of the nodes.
            read_value: Whether to return variables rather than bare operations.

        Returns:
            A list, with the result of `Variable.assign` for each part.

        Raises:
            InvalidArgumentError: the shape does not fit, or the number of values differs from the number of parts.
        """
        return self._apply(lambda part, new: part.assign(new, use_locking, name, read_value), value)

    def assign_add(
        self,
        value: TensorLike | Sequence[TensorLike],
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Add `value` to the parts. Arguments, result and errors are those of `assign`."""
        return self._apply(lambda part, new: part.assign_add(new, use_locking, name, read_value), value)

    def assign_sub(
        self,
        value: TensorLike | Sequence[TensorLike],
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Subtract `value` from the parts. Arguments, result and errors are those of `assign`."""
        return self._apply(lambda part, new: part.assign_sub(new, use_locking, name, read_value), value)

    def _apply(
        self, update: Callable[[Any, Any], Variable | Operation], value: TensorLike | Sequence[TensorLike]
    ) -> list[Variable | Operation]:
        with self.graph.as_default():
            return [update(*pair) for pair in zip(self._variable_list, self._values_of(value), strict=True)]

    def _values_of(self, value: TensorLike | Sequence[TensorLike]) -> Sequence[TensorLike]:
        """Return the values for the parts."""
        if isinstance(value, list | PartitionedVariable):
            if len(value) != len(self._variable_list):
                raise InvalidArgumentError(
                    f"{self._name} needs a value for each part", expected=len(self._variable_list), actual=len(value)
                )
            return list(value)
        axis = self._axis()
        sizes: list[Any] = [part.dims[axis] for part in self._variable_list if part.dims is not None]
        return make_list("SplitV", value, sizes, axis, num_split=len(sizes))


def _info(part: object, name: str, dims: tuple[int | None, ...]) -> SaveSliceInfo:
    """Return the position of a part in the whole. Raise InvalidArgumentError if it belongs to another whole."""
    if not isinstance(part, Variable):
        raise DTypeError("a part must be a variable", expected="a Variable", actual=repr(part))
    info = part.save_slice_info
    if info is None or tuple(info.full_shape) != dims:
        raise InvalidArgumentError(
            f"{part.name} is no part of {name}",
            expected=f"slice information of {format_dims(dims)}",
            actual=None if info is None else info.full_shape,
        )
    return info


def _to_tensor(
    value: PartitionedVariable, dtype: DType | None = None, name: str | None = None, as_ref: bool = False
) -> Tensor:
    return value.as_tensor()


register_tensor_conversion_function(PartitionedVariable, _to_tensor)
