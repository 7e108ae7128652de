"""A matrix with labels for its columns, such as class probabilities, which is fetched as one dictionary per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aioflow.graph.composite import CompositeTensor
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims, TensorShape
from aioflow.memory.values import Array


class LabelledTensor(CompositeTensor):
    """A tensor of shape [rows, labels], fetched as a list of dictionaries by label. Ops read its values.

    Attributes:
        values: The tensor.
        labels: The label of each column, all strings or all integers.
    """

    __slots__ = ("_columns", "labels")

    if TYPE_CHECKING:
        _fetched: list[dict[str | int, Any]]  # see Fetchable

    def __init__(self, values: Tensor, labels: Sequence[str | int]) -> None:
        self.values = values
        self.labels = tuple(labels)
        first: dict[Any, int] = {}
        for column, label in enumerate(self.labels):
            first.setdefault(label, column)
        self._columns = sorted(first.items())  # as in onnxruntime, the first of equal labels counts

    @property
    def dims(self) -> Dims:
        """The static shape of the values, as plain data."""
        return self.values.dims

    @property
    def shape(self) -> TensorShape:
        """The static shape of the values."""
        return self.values.shape

    @property
    def components(self) -> tuple[Tensor, ...]:
        """The values."""
        return (self.values,)

    def with_components(self, components: Sequence[Any]) -> LabelledTensor:
        """Return a tensor with these values and the same labels."""
        return LabelledTensor(components[0], self.labels)

    def _as_graph_element(self) -> Tensor:
        return self.values

    def dictionaries(self, rows: Array) -> list[dict[Any, Any]]:
        """Return for each row of a fetched value a dictionary of Python numbers by label."""
        return [{label: row[column] for label, column in self._columns} for row in rows.tolist()]

    def __repr__(self) -> str:
        return f"<LabelledTensor values={self.values!r} labels={list(self.labels)!r}>"


def labels_of(tensor: Any) -> tuple[str | int, ...]:
    """Return the labels of the columns; () for a tensor without labels."""
    return tensor.labels if isinstance(tensor, LabelledTensor) else ()


def values_of(tensor: Any) -> Tensor:
    """Return the tensor itself, or the values of a labelled tensor."""
    found: Tensor = tensor.values if isinstance(tensor, LabelledTensor) else tensor
    return found
