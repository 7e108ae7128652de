"""Iterators in a graph: `get_next` is a node that takes the next element of a dataset in each step."""

from __future__ import annotations

from typing import Any

from aioflow.arguments import check_kind
from aioflow.data import structures
from aioflow.data.building import Described, one_shot_node
from aioflow.errors import DTypeError, FailedPreconditionError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.shapes import is_compatible
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_op
from aioflow.ops.data.definitions import IteratorPosition

__all__ = [
    "Iterator",
    "get_output_classes",
    "get_output_shapes",
    "get_output_types",
    "make_initializable_iterator",
    "make_one_shot_iterator",
    "make_saveable_from_iterator",
]


class Iterator:
    """An iterator over the elements of a dataset, in the steps of a session.

    Args:
        iterator_resource: Handle of the resource.
        initializer: The op that begins to iterate, or None.
        output_types: Structure of dtypes.
        output_shapes: Structure of static shapes, or None.
        output_classes: Ignored; all components are tensors.

    Attributes:
        element_spec: The structure of an element, with a `TensorSpec` per component.
    """

    def __init__(
        self,
        iterator_resource: Tensor,
        initializer: Operation | None,
        output_types: Any,
        output_shapes: Any,
        output_classes: Any = None,
    ) -> None:
        self._handle = iterator_resource
        self._initializer = initializer
        self.element_spec = structures.specs(output_types, output_shapes, "an iterator")

    @staticmethod
    def from_structure(
        output_types: Any, output_shapes: Any = None, shared_name: str | None = None, output_classes: Any = None
    ) -> Iterator:
        """Return an iterator without a dataset: `make_initializer` makes the op that begins one.

        Args:
            output_types: Structure of dtypes.
            output_shapes: Structure of static shapes, or None.
            shared_name: Iterators of one worker with the same name are the same.
            output_classes: Ignored; all components are tensors.
        """
        spec = structures.specs(output_types, output_shapes, "Iterator.from_structure")
        return Iterator(_resource(spec, shared_name), None, output_types, output_shapes)

    @staticmethod
    def from_string_handle(
        string_handle: TensorLike, output_types: Any, output_shapes: Any = None, output_classes: Any = None
    ) -> Iterator:
        """Return the iterator that a fed string names: the value of `string_handle` of another one."""
        spec = structures.specs(output_types, output_shapes, "Iterator.from_string_handle")
        handle = make(
            "IteratorFromStringHandleV2",
            convert_to_tensor(string_handle, dtypes.string),
            output_types=structures.types_of(spec),
            output_shapes=structures.dims_in(spec),
        )
        return Iterator(handle, None, output_types, output_shapes)

    @property
    def initializer(self) -> Operation:
        """The op that begins to iterate.

        Raises:
            FailedPreconditionError: the iterator has none: it is a one-shot one, or `make_initializer` makes them.
        """
        if self._initializer is None:
            raise FailedPreconditionError(
                "the iterator has no initializer", expected="make_initializable_iterator", actual=self._handle.name
            )
        return self._initializer

    @property
    def graph(self) -> Graph:
        """The graph of the iterator."""
        graph: Graph = self._handle.graph
        return graph

    @property
    def handle(self) -> Tensor:
        """The handle of the resource."""
        return self._handle

    @property
    def output_types(self) -> Any:
        """The structure of an element, with the dtype of each component."""
        return structures.map_leaves(lambda spec: spec.dtype, self.element_spec)

    @property
    def output_shapes(self) -> Any:
        """The structure of an element, with the static shape of each component."""
        return structures.map_leaves(lambda spec: spec.shape, self.element_spec)

    @property
    def output_classes(self) -> Any:
        """The structure of an element, with the class `Tensor` for each component."""
        return structures.map_leaves(lambda _: Tensor, self.element_spec)

    def make_initializer(self, dataset: Described, name: str | None = None) -> Operation:
        """Return an op that begins to iterate over a dataset, whose elements must fit.

        Raises:
            DTypeError: the dtypes or the structures differ.
            InvalidArgumentError: a shape does not fit.
        """
        check_kind(dataset, Described, "the dataset of an iterator", "a Dataset")
        given = structures.same_leaves(self.element_spec, dataset.element_spec, "the elements are nested differently")
        for mine, other in zip(structures.flatten(self.element_spec), given, strict=True):
            if mine.dtype is not other.dtype:
                raise DTypeError(
                    "the dataset has other dtypes", expected=self.output_types, actual=dataset.output_types
                )
            if not is_compatible(mine.shape.raw, other.shape.raw):
                raise InvalidArgumentError(
                    "the dataset has other shapes", expected=self.output_shapes, actual=dataset.output_shapes
                )
        with self.graph.as_default():
            tensor = dataset.dataset_tensor()
            with self.graph.colocate_with(self._handle.op):
                return make_op("AioflowMakeIterator", tensor, self._handle, name=name or "MakeIterator")

    def get_next(self, name: str | None = None) -> Any:
        """Return the next element of each step, as tensors in the structure of an element.

        A step raises OutOfRangeError at the end.
        """
        op = make_op("IteratorGetNext", self._handle, name=name, **_attrs(self.element_spec))
        return structures.pack(self.element_spec, list(op.outputs))

    def string_handle(self, name: str | None = None) -> Tensor:
        """Return a string that `from_string_handle` accepts."""
        return make("IteratorToStringHandle", self._handle, name=name)


def _attrs(spec: Any) -> dict[str, Any]:
    return {"output_types": structures.types_of(spec), "output_shapes": structures.dims_in(spec)}


def _resource(spec: Any, shared_name: str | None) -> Tensor:
    return make("IteratorV2", shared_name=shared_name or "", container="", name="Iterator", **_attrs(spec))


def one_shot_iterator(dataset: Described) -> Iterator:
    """Return an iterator that needs no initializer."""
    with _graph_of(dataset).as_default():
        handle = one_shot_node(dataset, _attrs(dataset.element_spec))
        return Iterator(handle, None, dataset.output_types, dataset.output_shapes)


def initializable_iterator(dataset: Described, shared_name: str | None = None) -> Iterator:
    """Return an iterator with an initializer."""
    with _graph_of(dataset).as_default():
        handle = _resource(dataset.element_spec, shared_name)
        made = Iterator(handle, None, dataset.output_types, dataset.output_shapes)
        return Iterator(handle, made.make_initializer(dataset), dataset.output_types, dataset.output_shapes)


def _graph_of(dataset: Described) -> Graph:
    return dataset.graph or default_graph()


def make_one_shot_iterator(dataset: Described) -> Iterator:
    """Return an iterator over `dataset` that needs no initializer: it begins with its first step."""
    return one_shot_iterator(dataset)


def make_initializable_iterator(dataset: Described, shared_name: str | None = None) -> Iterator:
    """Return an iterator over `dataset` that begins when its `initializer` is run, and again each time."""
    return initializable_iterator(dataset, shared_name)


def get_output_types(dataset_or_iterator: Described | Iterator) -> Any:
    """Return the structure of an element, with the dtype of each component."""
    return dataset_or_iterator.output_types


def get_output_shapes(dataset_or_iterator: Described | Iterator) -> Any:
    """Return the structure of an element, with the static shape of each component."""
    return dataset_or_iterator.output_shapes


def get_output_classes(dataset_or_iterator: Described | Iterator) -> Any:
    """Return the structure of an element, with the class of each component."""
    return dataset_or_iterator.output_classes


def make_saveable_from_iterator(iterator: Iterator, external_state_policy: object = None) -> IteratorPosition:
    """Return the position of an iterator as an object that a `Saver` saves.

        saveable = aioflow.data.experimental.make_saveable_from_iterator(iterator)
        aioflow.add_to_collection(aioflow.GraphKeys.SAVEABLE_OBJECTS, saveable)

    A `Saver` without an explicit list then saves the position with the variables, and `restore` continues after the
    element that was consumed last. If the iterator has no dataset yet, it continues there as soon as it has.
    """
    return IteratorPosition(iterator.handle)
