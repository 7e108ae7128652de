"""Nodes of datasets, and the functions that they call: traced once if they are made of ops."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aioflow.data import structures
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_op
from aioflow.ops.data import definitions as _definitions  # noqa: F401  # defines the ops that are made here
from aioflow.ops.function.body import Function
from aioflow.ops.function.python_functions import PythonFunction, keep_function
from aioflow.ops.function.tracing import TensorSpec, plain_name, trace


class Traced:
    """A function made of ops, traced for one kind of elements.

    Attributes:
        function: The traced function.
        structure: The structure of specifications of its results, or the dataset that it returns.
    """

    def __init__(self, function: Function, structure: Any) -> None:
        self.function = function
        self.structure = structure

    @property
    def graph(self) -> Graph:
        """The graph of the function."""
        return self.function.graph


def traced(map_func: Callable[..., Any], specs: Sequence[Any], what: str, unpacks: bool = True) -> Traced:
    """Trace a function of elements.

    Args:
        map_func: The function.
        specs: The structure of specifications of each argument; of a single argument, the items of a plain tuple are
            the arguments.
        what: What the function is for, for messages.
        unpacks: Whether that holds.

    Raises:
        DTypeError: it returns something that is neither tensors nor a dataset.
    """
    leaves = [leaf for spec in specs for leaf in structures.flatten(spec)]
    made: list[Any] = []

    def run(values: Sequence[object]) -> object:
        left = list(values)
        arguments = []
        for spec in specs:
            count = len(structures.flatten(spec))
            arguments.append(structures.pack(spec, left[:count]))
            del left[:count]
        if unpacks and len(arguments) == 1 and type(arguments[0]) is tuple:
            arguments = list(arguments[0])
        result = map_func(*arguments)
        if isinstance(result, list):
            result = tuple(result)
        if hasattr(result, "dataset_tensor"):
            made.append(result)
            return [result.dataset_tensor()]
        made.append(structures.map_leaves(lambda leaf: _component(leaf, what), result))
        return structures.flatten(made[0])

    name = plain_name(getattr(map_func, "__name__", what))
    concrete = trace(default_graph(), name, run, leaves, [f"args_{i}" for i in range(len(leaves))])
    structure = made[0]
    if not hasattr(structure, "dataset_tensor"):
        structure = structures.map_leaves(structures.spec_of, structure)
    return Traced(concrete.function, structure)


def _component(value: Any, what: str) -> Tensor:
    if value is None or isinstance(value, Operation):
        raise DTypeError(f"the function of {what} must return tensors", expected="tensors", actual=repr(value)[:80])
    return convert_to_tensor(value)


def is_coroutine_function(function: Any) -> bool:
    """Return whether calls of a function are awaitable."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def flattening(
    function: Callable[..., Awaitable[Any]], specs: Sequence[Any], results: Any, what: str
) -> Callable[..., Awaitable[list[Any]]]:
    """Return a coroutine function of components for one of elements."""

    async def call(*values: Any) -> list[Any]:
        left = list(values)
        arguments = []
        for spec in specs:
            count = len(structures.flatten(spec))
            arguments.append(structures.pack(spec, left[:count]))
            del left[:count]
        if len(arguments) == 1 and type(arguments[0]) is tuple:
            arguments = list(arguments[0])
        return structures.same_leaves(results, await function(*arguments), f"the result of {what} does not fit")

    return call


class Described:
    """The description of a dataset: a stage, and those that it reads.

    Attributes:
        kind: The stage.
        inputs: The datasets that it reads.
        args: Its settings and components, or a function that builds them.
        element_spec: The structure of an element, with a `TensorSpec` per component.
        traced: The function that it calls, if it is made of ops.
        python: The Python function that it calls.
        name: Name of its node.
    """

    def __init__(
        self,
        kind: str,
        element_spec: Any,
        inputs: Sequence[Described] = (),
        args: Sequence[TensorLike] | Callable[[], Sequence[TensorLike]] = (),
        *,
        traced: Traced | None = None,
        python: Any = None,
        name: str | None = None,
    ) -> None:
        self.kind = kind
        self.element_spec = element_spec
        self.inputs = tuple(inputs)
        self.args = args
        self.traced = traced
        self.python = python
        self.name = name or "".join(part.title() for part in kind.split("_")) + "Dataset"
        self._bound = _graph_among(self.inputs, args, traced)

    def __repr__(self) -> str:
        return f"<aioflow.data.Dataset {self.name}: {self.element_spec}>"

    def dataset_tensor(self) -> Tensor:
        """Make the nodes of the dataset in the default graph, and return its handle."""
        return dataset_node(self)

    @property
    def graph(self) -> Graph | None:
        """The graph that a function or a tensor of the dataset belongs to, or None."""
        return self._bound

    # -- the element --------------------------------------------------------------------------------------------------

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


def _graph_among(inputs: Sequence[Described], args: Any, function: Traced | None) -> Graph | None:
    if function is not None:
        return function.graph
    found: list[Graph | None] = [] if callable(args) else [value.graph for value in args if isinstance(value, Tensor)]
    found += [each.graph for each in inputs]
    return next((graph for graph in found if graph is not None), None)


def dataset_node(dataset: Described) -> Tensor:
    """Make the nodes of a dataset in the default graph, and return its handle."""
    inputs = [each.dataset_tensor() for each in dataset.inputs]
    given: Any = dataset.args() if callable(dataset.args) else dataset.args
    args = [convert_to_tensor(value) for value in given]
    attrs: dict[str, Any] = {
        "kind": dataset.kind,
        "output_types": structures.types_of(dataset.element_spec),
        "output_shapes": structures.dims_in(dataset.element_spec),
        "name": dataset.name,
    }
    if dataset.python is not None:
        token = keep_function(default_graph(), PythonFunction(dataset.python))
        return make("AioflowPythonDataset", inputs, args, token=token, **attrs)
    if dataset.traced is not None:
        function = dataset.traced.function
        if function.graph is not default_graph():
            raise InvalidArgumentError(
                "a function of the dataset was traced in another graph",
                expected="the iterator and the dataset in one graph",
                actual=function.name,
            )
        with function.graph.control_dependencies(list(function.body.waits)):
            return make("AioflowFunctionDataset", inputs, args, list(function.captured), f=function, **attrs)
    return make("AioflowDataset", inputs, args, **attrs)


def one_shot_node(dataset: Described, attrs: dict[str, Any]) -> Tensor:
    """Return the handle of an iterator that makes the dataset on first use."""
    concrete = trace(default_graph(), "make_dataset", lambda _: [dataset.dataset_tensor()], [], [])
    factory = concrete.function
    return make_op(
        "AioflowOneShotIterator", list(factory.captured), dataset_factory=factory, name="OneShotIterator", **attrs
    ).outputs[0]


def spec_like(spec: TensorSpec, dims: Any) -> TensorSpec:
    """Return a specification with another shape."""
    return TensorSpec(dims, spec.dtype)
