"""`function`: a decorator that makes a Python function one subgraph, traced once and called many times."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload
from weakref import WeakKeyDictionary

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import graph_of
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.shapes import Dims, ShapeLike, TensorShape, dims_of, format_dims, is_compatible
from aioflow.graph.tensor_like import TensorLike
from aioflow.ops import nest
from aioflow.ops.apply import convert_to_tensor, make
from aioflow.ops.function.body import BodyContext, Function, tracing
from aioflow.ops.function.calls import call, operation_of
from aioflow.ops.function.effects import ordered_effects

__all__ = ["ConcreteFunction", "PolymorphicFunction", "TensorSpec", "function"]

_NO_NAME: Final = re.compile(r"[^a-z0-9_]+")


class TensorSpec:
    """The specification of a tensor: static shape, dtype and name."""

    __slots__ = ("dtype", "name", "shape")

    def __init__(self, shape: ShapeLike | None, dtype: DTypeLike = dtypes.float32, name: str | None = None) -> None:
        self.shape = TensorShape(dims_of(shape))
        self.dtype = as_dtype(dtype)
        self.name = name

    def __repr__(self) -> str:
        return f"TensorSpec(shape={format_dims(self.shape.raw)}, dtype={self.dtype.name}, name={self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorSpec) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Dims, DType, str | None]:
        return (self.shape.raw, self.dtype, self.name)


@dataclass(frozen=True, slots=True)
class _Slot:
    """A placeholder for a tensor among the arguments or results: its position among the inputs or outputs."""

    index: int


class ConcreteFunction:
    """A Python function, traced for one kind of arguments. Calling it makes a call node.

    Attributes:
        function: The traced function.
    """

    def __init__(self, function: Function, structure: object, leaves: Sequence[object]) -> None:
        self.function = function
        self._structure = structure
        self._leaves = leaves

    @property
    def name(self) -> str:
        """The name that calls refer to."""
        return self.function.name

    @property
    def graph(self) -> Graph:
        """The graph of the function."""
        return self.function.graph

    @property
    def signature(self) -> str:
        """Name, inputs and outputs with their dtypes."""
        return self.function.signature

    @property
    def captured_inputs(self) -> list[Tensor]:
        """The outside tensors that the function reads besides its arguments, including the handles of variables."""
        return list(self.function.captured)

    def __call__(self, *tensors: TensorLike, name: str | None = None) -> Any:
        """Call the function with one tensor per argument, in the order of the inputs.

        Raises:
            InvalidArgumentError: there are too few or too many tensors, or the shape of one does not fit.
            DTypeError: a tensor has a different dtype.
        """
        arguments = self.function.arguments
        if len(tensors) != len(arguments):
            raise InvalidArgumentError(
                f"wrong number of arguments for {self.signature}", expected=len(arguments), actual=len(tensors)
            )
        with self.graph.as_default():
            values = [_fitted(value, a.dtype, a.dims, a.op.name) for value, a in zip(tensors, arguments, strict=True)]
        return self.results_of(operation_of(call(self.function, values, name)))

    def results_of(self, op: Operation) -> Any:
        """Return the call `op`'s outputs in the structure that the Python function returns."""
        return nest.pack(self._structure, [_value(leaf, op) for leaf in self._leaves])

    def __repr__(self) -> str:
        return f"<aioflow.ConcreteFunction {self.signature}>"


def _value(leaf: object, op: Operation) -> object:
    """Return one result of a call: an output, the node itself, or None."""
    if isinstance(leaf, _Slot):
        return op.outputs[leaf.index]
    return op if leaf is Operation else leaf


def _fitted(value: TensorLike, dtype: DType, dims: Dims, name: str) -> Tensor:
    """Return the value as a tensor that fits an argument."""
    tensor = convert_to_tensor(value, dtype, name=name)
    if not is_compatible(tensor.dims, dims):
        raise InvalidArgumentError(
            f"argument {name!r} has the wrong shape", expected=format_dims(dims), actual=format_dims(tensor.dims)
        )
    return tensor


class PolymorphicFunction:
    """A Python function decorated by `aioflow.function`: it is traced once for each kind of arguments."""

    def __init__(
        self,
        python_function: Callable[..., object],
        input_signature: Sequence[TensorSpec] | None = None,
        name: str | None = None,
        grad_func: object = None,
    ) -> None:
        functools.update_wrapper(self, python_function)
        self.python_function = python_function
        self.input_signature = None if input_signature is None else tuple(input_signature)
        self._name = name or plain_name(getattr(python_function, "__name__", "function"))
        self._signature = inspect.signature(python_function)
        self._gradient = grad_func
        # A graph that is no longer used takes its traces along.
        self._traced: WeakKeyDictionary[Graph, dict[object, ConcreteFunction]] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        """The base of the names of the traced functions, to which a number is added if needed."""
        return self._name

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Make a call node. Return the results in the structure that the Python function returns.

        The function is traced if the arguments are of a new kind. Tensors and arrays are of one kind if dtype and
        static shape are equal, all other arguments if they are equal.

        Raises:
            UnimplementedError: the function calls itself.
            DTypeError, InvalidArgumentError: the arguments do not fit `input_signature`, or an argument is neither a
                tensor nor hashable.
        """
        structure, leaves = self._arguments(args, kwargs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        return self._concrete(structure, leaves)(*tensors)

    def get_concrete_function(self, *args: object, **kwargs: object) -> ConcreteFunction:
        """Return the trace for arguments of this kind, by default those of `input_signature`.

        A `TensorSpec` may replace a tensor.
        """
        if not args and not kwargs and self.input_signature is not None:
            args = self.input_signature
        structure, leaves = self._arguments(args, kwargs)
        return self._concrete(structure, leaves)

    def _arguments(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[object, list[object]]:
        """Return the structure of the arguments (positions, then keywords) and its leaves, with arrays as tensors."""
        bound = self._signature.bind(*args, **kwargs)
        # A default is an argument like any other, so f() and f(default) share a trace.
        bound.apply_defaults()
        if self.input_signature is not None:
            values = [*bound.args, *bound.kwargs.values()]
            return ((None,) * len(bound.args), dict.fromkeys(bound.kwargs)), self._specified(values)
        structure = (bound.args, bound.kwargs)
        return structure, [_leaf(value) for value in nest.flatten(structure)]

    def _specified(self, leaves: Sequence[Any]) -> list[object]:
        specs = self.input_signature or ()
        if len(specs) != len(leaves):
            raise InvalidArgumentError(
                f"{self._name} has an input signature", expected=f"{len(specs)} tensors", actual=f"{len(leaves)} values"
            )
        return [
            leaf if isinstance(leaf, TensorSpec) else _fitted(leaf, spec.dtype, spec.shape.raw, f"argument_{i}")
            for i, (leaf, spec) in enumerate(zip(leaves, specs, strict=True))
        ]

    def _concrete(self, structure: object, leaves: Sequence[object]) -> ConcreteFunction:
        graph = graph_of(leaves)
        specs = self.input_signature or [_spec(leaf) for leaf in leaves]
        # The structure is part of the key: f(a, b) and f((a, b)) have the same leaves.
        key = (nest.describe(structure), tuple(_key(spec) for spec in specs))
        traces = self._traced.setdefault(graph, {})
        if key not in traces:
            # Two functions may share a name. Only the same function with the same kind of arguments calls itself
            # forever.
            with tracing(self._name, (id(self), key)):
                traces[key] = self._trace(graph, structure, specs)
        return traces[key]

    def _trace(self, graph: Graph, structure: object, specs: Sequence[object]) -> ConcreteFunction:
        names = _argument_names(self._signature, structure)
        made = trace(graph, self._name, lambda values: self._run(structure, values), specs, names)
        if self._gradient is not None:
            made.function.gradient = _as_gradient(self._gradient, made.function)
        return made

    def _run(self, structure: object, values: Sequence[object]) -> object:
        args, kwargs = nest.pack(structure, list(values))
        return self.python_function(*args, **kwargs)

    def __get__(self, instance: object, owner: object = None) -> Any:
        """Bind a method: the instance becomes the first argument."""
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<aioflow.function {self._name}>"


def trace(
    graph: Graph, name: str, run: Callable[[Sequence[object]], object], leaves: Sequence[object], names: Sequence[str]
) -> ConcreteFunction:
    """Run a Python function once, inside a new body.

    Args:
        graph: The graph of the function.
        name: Name of the function; a number is added if the graph has it already.
        run: A function of the leaves, with a tensor in the place of each TensorSpec.
        leaves: The arguments.
        names: Names of the leaves.
    """
    body = BodyContext(graph, unique_name(graph, name))
    # Reserve the name: functions traced inside this one must not get it.
    graph.functions[body.name] = body
    try:
        return _trace_into(body, run, leaves, names)
    except BaseException:
        del graph.functions[body.name]
        raise


def _trace_into(
    body: BodyContext, run: Callable[[Sequence[object]], object], leaves: Sequence[object], names: Sequence[str]
) -> ConcreteFunction:
    graph = body.graph
    arguments: list[Tensor] = []
    values: list[object] = []
    with graph.as_default(), body.opened():
        for leaf, leaf_name in zip(leaves, names, strict=True):
            if isinstance(leaf, TensorSpec):
                plain = plain_name(leaf.name or leaf_name)
                arguments.append(make("Placeholder", dtype=leaf.dtype, shape=leaf.shape.raw, name=plain))
                values.append(arguments[-1])
            else:
                values.append(leaf)
        made = run(values)
        outputs: list[Tensor] = []
        running: list[Operation] = []
        results = [_result(body, leaf, outputs, running) for leaf in nest.flatten(made)]
    # A node that the function returns runs with every call, like an effect.
    traced = Function(body, body.name, arguments, outputs, list(dict.fromkeys([*ordered_effects(body), *running])))
    graph.functions[body.name] = traced
    return ConcreteFunction(traced, made, results)


def _result(body: BodyContext, leaf: Any, outputs: list[Tensor], running: list[Operation]) -> object:
    """Return the description of one result: its position among the outputs, or `Operation` for a node."""
    if leaf is None:
        return None
    if isinstance(leaf, Operation):
        if body.holds(leaf):
            running.append(leaf)
        else:
            body.waits[leaf] = None
        return Operation
    outputs.append(body.capture(convert_to_tensor(leaf)))
    return _Slot(len(outputs) - 1)


def _leaf(value: object) -> object:
    """Return an argument, with an array converted to a tensor."""
    return convert_to_tensor(value) if isinstance(value, np.ndarray | np.generic) else value


def _spec(leaf: object) -> object:
    return TensorSpec(leaf.dims, leaf.dtype) if isinstance(leaf, Tensor) else leaf


def _key(leaf: object) -> object:
    if isinstance(leaf, TensorSpec):
        return leaf
    try:
        hash(leaf)
    except TypeError:
        raise DTypeError(
            "a non-tensor argument must be hashable, because it selects the trace",
            expected="tensors, numbers, text, or hashable objects",
            actual=repr(leaf),
        ) from None
    # 1, 1.0 and True are equal, but make different nodes.
    return (type(leaf), leaf)


def _argument_names(signature: inspect.Signature, structure: Any) -> list[str]:
    """Return for each leaf the name of its parameter."""
    args, kwargs = structure
    parameters = list(signature.parameters.values())
    names: list[str] = []
    for i, value in enumerate(args):
        # Further positional arguments belong to the last parameter, `*args`.
        parameter = parameters[min(i, len(parameters) - 1)]
        names += [parameter.name] * len(nest.flatten(value))
    # `nest` flattens a dict in the order of its sorted keys.
    for key in sorted(kwargs):
        names += [key] * len(nest.flatten(kwargs[key]))
    return names


def plain_name(name: str) -> str:
    """Return the name in the form that function definitions allow."""
    plain = _NO_NAME.sub("_", name.lower()).strip("_")
    return plain if plain[:1].isalpha() else f"f_{plain}".rstrip("_")


def unique_name(graph: Graph, name: str) -> str:
    """Return a name that no function of the graph has."""
    if name not in graph.functions:
        return name
    return next(f"{name}_{i}" for i in itertools.count(1) if f"{name}_{i}" not in graph.functions)


def _as_gradient(given: object, function: Function) -> object:
    """Return the gradient function, traced for the arguments of `function` and the gradients of its outputs.

    A plain Python function, of the node and the gradients, is returned as it is.
    """
    if isinstance(given, PolymorphicFunction):
        tensors = [*function.arguments, *function.outputs]
        given = given.get_concrete_function(*(TensorSpec(t.dims, t.dtype) for t in tensors))
    if not isinstance(given, ConcreteFunction):
        return given
    if given.captured_inputs:
        raise InvalidArgumentError(
            f"the gradient of {function.name!r} may only read its arguments",
            expected="arguments and gradients of the results",
            actual=[t.name for t in given.captured_inputs],
        )
    return given.function


@overload
def function(
    func: Callable[..., object],
    input_signature: Sequence[TensorSpec] | None = None,
    name: str | None = None,
    grad_func: Callable[..., object] | None = None,
) -> PolymorphicFunction: ...


@overload
def function(
    func: None = None,
    input_signature: Sequence[TensorSpec] | None = None,
    name: str | None = None,
    grad_func: Callable[..., object] | None = None,
) -> Callable[[Callable[..., object]], PolymorphicFunction]: ...


def function(
    func: Any = None,
    input_signature: Sequence[TensorSpec] | None = None,
    name: str | None = None,
    grad_func: object = None,
) -> object:
    """Return a decorator that makes a Python function one subgraph, with its gradient.

    The function is run once for each kind of arguments: tensors and arrays by dtype and static shape, everything else
    by value. The nodes that it makes are the body. Each call makes one node, which stands for a copy of the body.
    Variables and tensors from outside are read where they are. Nodes in the body that have effects run whenever the
    call does, in the order in which they were made. Gradients of any order flow through.

    Args:
        func: The function; without it, the decorator is returned.
        input_signature: One `TensorSpec` per argument: the function is traced once, for these.
        name: Name in definitions of the graph; by default the function's own name.
        grad_func: Replacement for the gradient of the body. Either a function made by this decorator, of the arguments
            and the gradients of the results, that returns the gradients of the arguments; or a plain one, of the call
            node and the gradients of the results.

    Returns:
        A `PolymorphicFunction`, to be called like the function itself.
    """

    def decorate(python_function: Callable[..., object]) -> PolymorphicFunction:
        if not callable(python_function):
            raise DTypeError("not a function", expected="a function", actual=repr(python_function))
        return PolymorphicFunction(python_function, input_signature, name, grad_func)

    return decorate if func is None else decorate(func)
