"""The position of a part in a partitioned variable, for initializers and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aioflow.errors import InvalidArgumentError
from aioflow.formats.tensor_slice import TensorSlice


class SaveSliceInfo:
    """The position of a variable's value in a checkpoint, as a part of the tensor `full_name`.

    Attributes:
        full_name: Name of the whole tensor.
        full_shape: Sizes of the whole tensor.
        var_offset: Start of the part along each axis.
        var_shape: Sizes of the part.
    """

    def __init__(
        self,
        full_name: str | None = None,
        full_shape: Sequence[int] | None = None,
        var_offset: Sequence[int] | None = None,
        var_shape: Sequence[int] | None = None,
    ) -> None:
        self.full_name = full_name or ""
        self.full_shape = list(full_shape or ())
        self.var_offset = list(var_offset or ())
        self.var_shape = list(var_shape or ())

    @property
    def spec(self) -> str:
        """The part in the format of the ops that save and restore: "10 4 0,5:0,4"."""
        return TensorSlice(tuple(self.full_shape), tuple(self.var_offset), tuple(self.var_shape)).text


class PartitionInfo:
    """The position of a part in its variable, passed to initializers as `partition_info`.

    Attributes:
        full_shape: Sizes of the whole variable.
        var_offset: Start of the part along each axis.

    Raises:
        InvalidArgumentError: the offset is outside the shape.
    """

    def __init__(self, full_shape: Sequence[int], var_offset: Sequence[int]) -> None:
        if len(full_shape) != len(var_offset) or any(
            not 0 <= offset < size for offset, size in zip(var_offset, full_shape, strict=True)
        ):
            raise InvalidArgumentError(
                "a part does not begin inside the variable", expected=f"inside {full_shape}", actual=var_offset
            )
        self.full_shape = list(full_shape)
        self.var_offset = list(var_offset)

    def single_offset(self, shape: Sequence[int]) -> int:
        """Return the start of a part of this shape along the axis that is split; 0 if there is no such axis."""
        axis = self.single_slice_dim(shape)
        return 0 if axis is None else self.var_offset[axis]

    def single_slice_dim(self, shape: Sequence[int]) -> int | None:
        """Return the axis along which a part of this shape was split, or None.

        Raises:
            InvalidArgumentError: there are several such axes, or a part of this shape does not fit at this offset.
        """
        if len(shape) != len(self.full_shape) or any(
            offset + size > full for offset, size, full in zip(self.var_offset, shape, self.full_shape, strict=True)
        ):
            raise InvalidArgumentError(
                "a part does not fit into its variable",
                expected=f"inside {self.full_shape} from {self.var_offset}",
                actual=list(shape),
            )
        cut = [axis for axis, (size, full) in enumerate(zip(shape, self.full_shape, strict=True)) if size != full]
        if len(cut) > 1:
            raise InvalidArgumentError("a part is cut along several axes", expected="one axis", actual=cut)
        return cut[0] if cut else None


def partition_axis(partitions: Sequence[int]) -> int:
    """Return the axis that is split; 0 if there is no such axis."""
    return next((axis for axis, count in enumerate(partitions) if count > 1), 0)


def slices_of(full_shape: Sequence[int], partitions: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the offset and shape of each part, in order.

    If the size does not divide evenly, the first parts are larger by one.
    """
    axis = partition_axis(partitions)
    count = partitions[axis]
    each, extra = divmod(full_shape[axis], count)
    offset = [0] * len(full_shape)
    for number in range(count):
        shape = list(full_shape)
        shape[axis] = each + (number < extra)
        yield list(offset), shape
        offset[axis] += shape[axis]
