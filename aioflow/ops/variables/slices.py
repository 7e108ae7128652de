"""What a part of a partitioned variable knows of the whole: for its initializer, and for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aioflow.errors import InvalidArgumentError
from aioflow.formats.tensor_slice import TensorSlice

__all__ = ["PartitionInfo", "SaveSliceInfo", "partition_axis", "slices_of"]


class SaveSliceInfo:
    """Where the value of a variable belongs in a checkpoint: a part of the tensor `full_name`.

    Attributes:
        full_name: Name of the whole tensor.
        full_shape: Its sizes.
        var_offset, var_shape: Where the part begins, and its sizes.
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
        """The part as the ops that save and restore take it: "10 4 0,5:0,4"."""
        return TensorSlice(tuple(self.full_shape), tuple(self.var_offset), tuple(self.var_shape)).text


class PartitionInfo:
    """What an initializer is told of the part that it makes, as `partition_info`.

    Attributes:
        full_shape: Sizes of the whole variable.
        var_offset: Where the part begins.

    Raises:
        InvalidArgumentError: the offset does not lie in the shape.
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
        """Where a part of that shape begins, along the one axis that is cut; 0 where none is."""
        axis = self.single_slice_dim(shape)
        return 0 if axis is None else self.var_offset[axis]

    def single_slice_dim(self, shape: Sequence[int]) -> int | None:
        """The axis along which a part of that shape was cut, or None.

        Raises:
            InvalidArgumentError: there are several, or no such part begins here.
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
    """The axis that is cut; 0 where none is."""
    return next((axis for axis, count in enumerate(partitions) if count > 1), 0)


def slices_of(full_shape: Sequence[int], partitions: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """(offset, shape) of each part, in order. Where the sizes do not divide, the first parts have one row more."""
    axis = partition_axis(partitions)
    count = partitions[axis]
    each, extra = divmod(full_shape[axis], count)
    offset = [0] * len(full_shape)
    for number in range(count):
        shape = list(full_shape)
        shape[axis] = each + (number < extra)
        yield list(offset), shape
        offset[axis] += shape[axis]
