"""Functions by name: traced functions, and those of imported libraries, which are built at the first call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aioflow.errors import DTypeError, InvalidArgumentError, NotFoundError
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.graphdef import FunctionDef, FunctionRef, InputRef
from aioflow.ops.apply import make
from aioflow.ops.function.body import BodyContext, Function, StoredFunction, tracing
from aioflow.ops.function.effects import effects_of_definition
from aioflow.ops.importer import Import


def find_function(graph: Graph, name: str) -> Function:
    """Return the function of that name in the graph.

    Raises:
        NotFoundError: the graph has no such function.
        UnimplementedError: the function calls itself.
        InvalidArgumentError, DTypeError: its definition is inconsistent.
    """
    found: Any = graph.functions.get(name)
    if found is None:
        raise NotFoundError(
            f"no function {name!r} in the graph", expected=f"one of {sorted(graph.functions)}", actual=name
        )
    if isinstance(found, StoredFunction):
        # A function that calls itself comes here again before it is loaded.
        with tracing(name):
            found = _load(graph, found.definition)
        graph.functions[name] = found
    function: Function = found
    return function


def _load(graph: Graph, definition: FunctionDef) -> Function:
    body = BodyContext(graph, definition.name)
    with body.opened():
        arguments = [make("Placeholder", dtype=arg.dtype, shape=arg.dims, name=arg.name) for arg in definition.inputs]
        mapped: dict[InputRef, Any] = {}
        for arg, tensor in zip(definition.inputs, arguments, strict=True):
            # A node of the body may read an argument, or wait for it (port -1).
            mapped |= {InputRef(arg.name, 0): tensor, InputRef(arg.name, -1): tensor.op}
        work = Import(graph, definition.nodes, "", mapped, {})
        for node in work.in_order():
            work.build(node)
        work.close_loops()
        outputs = [work.result(text) for text in definition.returns]
        always = [work.running(text) for text in definition.control_returns]
    _check_outputs(definition, outputs)
    running = list(dict.fromkeys([*always, *effects_of_definition(body.nodes.values())]))
    made = Function(body, definition.name, arguments, outputs, running, definition=definition)
    if definition.gradient:
        made.gradient = find_function(graph, definition.gradient)
    return made


def _check_outputs(definition: FunctionDef, outputs: list[Tensor]) -> None:
    for arg, tensor in zip(definition.outputs, outputs, strict=True):
        if arg.dtype is not tensor.dtype:
            raise DTypeError(
                f"output {arg.name!r} of function {definition.name!r} has the wrong dtype",
                expected=arg.dtype.name,
                actual=repr(tensor),
            )


def called(op: Operation, attr: str, inputs: Sequence[Tensor], index: int | None = None) -> Function:
    """Return the function that an attribute of a call (or an item of it) names, checked against the inputs.

    Raises:
        NotFoundError, UnimplementedError: see `find_function`.
        InvalidArgumentError, DTypeError: the number or the dtypes of the inputs differ.
    """
    value = op.attrs[attr]
    ref: FunctionRef = value if index is None else value[index]
    return check_call(find_function(op.graph, ref.name), inputs)


def check_call(function: Function, inputs: Sequence[Tensor]) -> Function:
    """Return the function, checked against the inputs of a call.

    Raises:
        InvalidArgumentError, DTypeError: the number or the dtypes of the inputs differ.
    """
    wanted, actual = ([t.dtype.name for t in ts] for ts in (function.inputs, inputs))
    if wanted != actual:
        error = DTypeError if len(wanted) == len(actual) else InvalidArgumentError
        raise error(f"function {function.name!r} is called with the wrong inputs", expected=wanted, actual=actual)
    return function
