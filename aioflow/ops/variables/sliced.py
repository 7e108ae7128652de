"""A slice of a variable, to which can be assigned: `v[1:3].assign(...)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from aioflow.errors import DTypeError
from aioflow.graph.graph import Tensor
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.tensor_like import TensorLike
from aioflow.ops.array.strided import MASKS

VariableT_co = TypeVar("VariableT_co", covariant=True)  # the class `Variable`


class SliceUpdates(Protocol[VariableT_co]):
    """A variable, as its slices use it."""

    def assign_slice(self, bounds: Sequence[Tensor], value: TensorLike, name: str | None, masks: Attrs) -> VariableT_co:
        """Set a strided slice."""


class VariableSlice(Tensor, Generic[VariableT_co]):
    """The tensor `variable[...]`, which can also be updated.

    Args:
        part: The output of the node that reads the slice.
        variable: The variable.
    """

    __slots__ = ("_variable",)

    def __init__(self, part: Tensor, variable: SliceUpdates[VariableT_co]) -> None:
        super().__init__(part.op, part.value_index, part.dtype, part.dims)
        self._variable = variable
        # A tensor is equal only to itself, so this object takes the place of the output.
        part.op.outputs[part.value_index] = self

    def assign(self, value: TensorLike, name: str | None = None) -> VariableT_co:
        """Set the slice of the variable to `value`, which broadcasts to the shape of the slice.

        Returns:
            The variable in its state after the assignment.

        Raises:
            DTypeError: the index was a mask, or the value has a different dtype.
            InvalidArgumentError: the value does not fit (raised by the step).
        """
        if self.op.type != "StridedSlice":
            raise DTypeError(
                "elements chosen by a mask cannot be assigned to", expected="an index of slices", actual=self.op.type
            )
        masks = {mask: self.op.get_attr(mask) for mask in MASKS}
        return self._variable.assign_slice(self.op.inputs[1:], value, name or f"{self.op.name}/_assign", masks)
