"""`export`: conversion of a session, a graph or a model to a ModelProto, and to a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

import onnx
from onnx import ModelProto

from aioflow.arguments import brief
from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.optimize.passes import chosen_passes
from aioflow.compiler.prune import StepRequest, prune
from aioflow.concurrency.threads import in_thread
from aioflow.errors import DTypeError, FailedPreconditionError, InvalidArgumentError
from aioflow.formats.files import file_errors
from aioflow.graph import dtypes
from aioflow.graph.boundary import ARG, RETVAL
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Effect, Role
from aioflow.interop.model import Model
from aioflow.interop.onnx.exporting.assembly import assembled
from aioflow.interop.onnx.exporting.fusing import fused
from aioflow.interop.onnx.exporting.types import is_exportable, no_form
from aioflow.interop.onnx.exporting.walk import walk
from aioflow.memory.values import Array
from aioflow.ops.apply import make
from aioflow.ops.variables.variable import Variable
from aioflow.runtime.folding import fold
from aioflow.session.fetches import FetchMapper
from aioflow.session.session import Session

# ── variables as constants, so that no node uses a resource ───────────────────────────────────────────────────────────


_PASSES = ("shapes", "constant_folding", "arithmetic", "transposes", "common_subexpressions", "dead_code")


def handles(graph: ClientGraph) -> list[str]:
    """Return the variables that the step reads, by the names of their handle nodes."""
    return [name for name, node in graph.nodes.items() if node.op == "VarHandleOp"]


async def values_of(names: list[str], graph: Graph, session: Session | None) -> Mapping[str, Array]:
    """Return the values of variables in a session. A variable without a plain read gets one, added to the graph.

    Raises:
        FailedPreconditionError: there is no session, a variable has no value in it, or a read cannot be added because
            the graph is finalized.
    """
    if not names:
        return {}
    if session is None:
        raise FailedPreconditionError(
            "the graph has variables, so the export needs a session with their values",
            expected="export(session, …)",
            actual=names[0],
        )
    wanted = set(names)
    reads = {name: tensor for name, tensor in _plain_reads(graph).items() if name in wanted}
    for name in names:
        if name not in reads:
            reads[name] = _new_read(graph.get_operation_by_name(name))
    # All in one step, so that they are values of one moment.
    found: dict[str, Array] = await session.run(reads)
    return found


def _plain_reads(graph: Graph) -> dict[str, Tensor]:
    """Return a read for each variable, by the name of its handle node.

    Only reads without control dependencies and outside of control flow count, such as the one that each variable is
    created with.
    """
    found: dict[str, Tensor] = {}
    for op in graph.get_operations():
        if op.type == "ReadVariableOp" and not op.waits_for and op.control_flow_context is None:
            found.setdefault(op.inputs[0].op.name, op.outputs[0])
    return found


def _new_read(handle: Operation) -> Tensor:
    with handle.graph.as_default(), handle.graph.control_dependencies(None):
        return make("ReadVariableOp", handle.outputs[0], dtype=handle.attrs["dtype"])


def changing(graph: ClientGraph) -> list[Node]:
    """Return the nodes that change a resource. A model cannot express that effect, which later nodes may depend on."""
    return [
        node
        for node in graph.nodes.values()
        if traits_of(node.op).effect is Effect.CHANGES
        and any(graph.spec(edge).dtype is dtypes.resource for edge in node.inputs)
    ]


def frozen(graph: ClientGraph, values: Mapping[str, Array]) -> ClientGraph:
    """Return the step with constants in place of variables.

    Control dependencies are dropped, and with them asserts and prints.
    """
    nodes: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        if name in values:
            nodes[name] = _constant(node, values[name])
        # Handles come before their readers: nodes are in topological order, and replaced handles are constants by now.
        elif node.inputs and (handle := _handle(node, nodes)) in values:
            nodes.update((made.name, made) for made in _reading(node, nodes[handle]))
        else:
            nodes[name] = node
    return replace(graph, nodes=nodes)


def _handle(node: Node, nodes: Mapping[str, Node]) -> str:
    """Return the name of the node that makes the resource of a node's first input, or "".

    Enter and Switch nodes in between, of the loops and branches around the node, are looked through.
    """
    name = node.inputs[0].node
    while name in nodes and nodes[name].role in (Role.ENTER, Role.SWITCH):
        name = nodes[name].inputs[0].node
    # The Enter and Switch nodes themselves stay, and pass the value on instead of the handle.
    return "" if traits_of(node.op).is_control_flow else name


def _constant(node: Node, value: Array) -> Node:
    dtype = node.attrs["dtype"]
    array = value if value.dtype == dtype.np_dtype else value.astype(dtype.np_dtype)
    return replace(node, op="Const", attrs={"dtype": dtype, "value": array}, outputs=(OutputSpec(dtype, array.shape),))


def _reading(node: Node, variable: Node) -> Iterator[Node]:
    """Yield the nodes that replace a read of a variable and compute the same from its value."""
    value = node.inputs[0]  # the variable's value, as seen inside loops and branches
    dtype = variable.attrs["dtype"]
    if node.op == "ReadVariableOp":
        yield replace(node, op="Identity", inputs=(value,), attrs={"T": dtype})
    elif node.op == "ResourceGather":
        axis = _zero(f"{node.name}/axis")
        yield axis
        attrs = {"batch_dims": node.attrs["batch_dims"], "Tparams": dtype, "Tindices": node.attrs["Tindices"]}
        inputs = (value, node.inputs[1], Edge(axis.name, 0))
        yield replace(node, op="GatherV2", inputs=inputs, attrs={**attrs, "Taxis": dtypes.int32})
    elif node.op == "ResourceGatherNd":
        attrs = {"Tparams": dtype, "Tindices": node.attrs["Tindices"], "bad_indices_policy": ""}
        yield replace(node, op="GatherNd", inputs=(value, node.inputs[1]), attrs=attrs)
    elif node.op == "VariableShape":
        yield replace(node, op="Shape", inputs=(value,), attrs={"T": dtype, "out_type": node.attrs["out_type"]})
    else:
        yield node  # has no translation


def _zero(name: str) -> Node:
    array = dtypes.int32.np_dtype.type(0).reshape(())
    return Node(name, "Const", attrs={"dtype": dtypes.int32, "value": array}, outputs=(OutputSpec(dtypes.int32, ()),))


def optimized(graph: ClientGraph) -> ClientGraph:
    """Return the step after those optimizations that only leave ordinary ops."""
    for each in chosen_passes(True):
        if each.name in _PASSES:
            graph = each.run(graph, fold)
    return graph


# ── the export ────────────────────────────────────────────────────────────────────────────────────────────────────────


# Opset 20 is the first with string operators and with all dtypes for numeric tests; onnxruntime supports it since 1.17.
# Before opset 18, reductions and splits had other forms.
DEFAULT_OPSET: Final = 20
OPSETS: Final = range(18, 24)

_LARGEST: Final = 2**31 - 2**20  # bytes of initializers, so that the whole message stays under protobuf's 2 GB
_KEPT_INSIDE: Final = 1024  # bytes; smaller constants stay in the model's own file

_Tensors: TypeAlias = Mapping[str, Tensor | Variable | str] | Sequence[Tensor | Variable | str] | Tensor | Variable


async def export(
    source: Session | Graph | Model,
    outputs: _Tensors | None = None,
    inputs: _Tensors | None = None,
    *,
    path: str | os.PathLike[str] | None = None,
    signature: str | None = None,
    session: Session | None = None,
    opset: int = DEFAULT_OPSET,
    external_data: bool | None = None,
) -> ModelProto:
    """Convert a graph to an ONNX model, which onnxruntime runs with equal results.

        model = await aioflow.interop.onnx.export(session, {"logits": logits}, {"x": x}, path="model.onnx")

    Variables become initializers with their values in the session. Unknown sizes are symbolic, so the model accepts
    other batch sizes too. Nodes that are only control inputs, such as asserts and prints, are dropped.

    Args:
        source: A session; a graph without variables; or a `Model`, as importers return it, with its own values.
        outputs: The outputs by their names in the model, or a list, named after the nodes. For a `Model`, by default
            the outputs of its signature.
        inputs: The inputs in the same form. By default, all placeholders that the outputs need; for a `Model` without
            `outputs`, the inputs of its signature.
        path: A file to write.
        signature: For a `Model`, the name of its signature, if it is not the default.
        session: For a `Model`, the session with its values (after fine-tuning, for example).
        opset: The version of ONNX's ops, 18 to 23.
        external_data: Whether to store large initializers in a separate file, `path` with ".data". By default, only if
            they exceed 2 GB, which no model file can hold. The returned model then refers to that file.

    Returns:
        The `onnx.ModelProto`.

    Raises:
        UnsupportedError: nodes have no translation; the error lists all of them.
        InvalidArgumentError: an output needs a placeholder that is not an input; a name occurs twice; there are no
            outputs, or no such opset; the model is too large for one file.
        DTypeError: `source` is of another type, an output or input is not a tensor, or ONNX lacks an input's dtype.
        FailedPreconditionError: the graph has variables, and no session is given.
        OpError: `path` cannot be written (NotFoundError if the folder does not exist).
    """
    _check_opset(opset)
    graph, found_outputs, found_inputs, values_in = _asked(source, outputs, inputs, signature, session)
    request = StepRequest(tuple(found_inputs.values()), tuple(found_outputs.values()))
    step = prune(request)
    _check_fed(step)
    if isinstance(source, Model) and values_in is None:
        # A session of its own, so that the values of the file do not overwrite those of another session.
        async with Session(graph=source.graph) as own:
            await source.initialize(own)
            values = await values_of(handles(step), graph, own)
    else:
        values = await values_of(handles(step), graph, values_in)
    names = list(found_inputs), list(found_outputs)
    # The walk takes long for a large graph, and would block the event loop.
    model = await in_thread(_made, step, values, *names, opset, effects=False)
    if path is not None:
        with file_errors(path):
            await in_thread(_write, model, Path(path), external_data)
    return model


def _check_opset(opset: object) -> None:
    if opset not in OPSETS:
        raise InvalidArgumentError("no such opset", expected=f"{OPSETS[0]} to {OPSETS[-1]}", actual=opset)


# ── inputs and outputs ────────────────────────────────────────────────────────────────────────────────────────────────


def _asked(
    source: object, outputs: object, inputs: object, signature: str | None, session: Session | None
) -> tuple[Graph, dict[str, Tensor], dict[str, Tensor], Session | None]:
    if not isinstance(source, Session | Graph | Model):
        raise DTypeError("nothing to export", expected="a Session, a Graph or a Model", actual=brief(source))
    graph = source if isinstance(source, Graph) else source.graph
    if isinstance(source, Session):
        session = source
    elif isinstance(source, Model) and outputs is None:
        chosen = source.signature(signature)
        outputs, inputs = chosen.outputs, chosen.inputs if inputs is None else inputs
    if outputs is None:
        raise InvalidArgumentError("an export needs outputs", expected="{name: tensor}", actual=None)
    wanted = _named(graph, outputs, "outputs")
    fed = _placeholders(wanted) if inputs is None else _named(graph, inputs, "inputs")
    both = sorted(wanted.keys() & fed.keys())
    if both:
        raise InvalidArgumentError(
            "an input and an output have the same name", expected="a name for each", actual=", ".join(both)
        )
    _check_dtypes(fed)
    return graph, wanted, fed, session


def _check_dtypes(inputs: Mapping[str, Tensor]) -> None:
    """Raise DTypeError for an input that no runtime accepts. It would be in the model even if no node reads it."""
    for tensor in inputs.values():
        if not is_exportable(tensor.dtype):
            raise no_form(tensor.dtype).at(tensor.op.name, tensor.op.type, tensor.op.source)


def _named(graph: Graph, given: object, what: str) -> dict[str, Tensor]:
    """Return tensors by name; a tensor without a given name gets that of its node."""
    if isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        listed = list(given) if isinstance(given, list | tuple) else [given]
        pairs = [(None, each) for each in listed]
    found: dict[str, Tensor] = {}
    for name, key in pairs:
        fetched = FetchMapper(graph, key)
        if fetched.targets or len(fetched.tensors) != 1:
            raise DTypeError(f"the {what} must be tensors", expected="tensors", actual=brief(key))
        (tensor,) = fetched.tensors
        chosen = _name_of(tensor) if name is None else name
        if not isinstance(chosen, str) or not chosen:
            raise DTypeError(f"a name among the {what} is empty or not a string", expected="text", actual=brief(chosen))
        if chosen in found:
            raise InvalidArgumentError(f"two {what} have the same name", expected="a name for each", actual=chosen)
        found[chosen] = tensor
    return found


def _name_of(tensor: Tensor) -> str:
    return tensor.op.name if tensor.value_index == 0 else tensor.name


def _placeholders(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the placeholders that the outputs need, in order of creation."""
    step = prune(StepRequest((), tuple(outputs.values())))
    graph = next(iter(outputs.values())).graph if outputs else None
    names = [name for name, node in step.nodes.items() if node.op == "Placeholder"]
    found = [] if graph is None else [graph.get_operation_by_name(name) for name in names]
    # A step has its nodes in the order of execution, a user expects that of creation.
    return {op.name: op.outputs[0] for op in sorted(found, key=lambda op: op.id)}


def _check_fed(step: ClientGraph) -> None:
    for node in step.nodes.values():
        if node.op == "Placeholder":
            error = InvalidArgumentError(
                "an output needs a placeholder that is not an input",
                expected="the placeholder among the inputs",
                actual=node.name,
            )
            raise error.at(node.name, node.op, node.source)


# ── the model ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _made(
    step: ClientGraph,
    values: Mapping[str, Array],
    inputs: Sequence[str],
    outputs: Sequence[str],
    opset: int,
) -> ModelProto:
    """Return the model. Slow: call it in a thread."""
    # In this order: patterns contain variables' values as constants, and optimization would break the patterns up.
    graph = optimized(fused(frozen(step, values), opset))
    # By index, since optimization may replace the nodes of feeds and fetches.
    args = {int(n.attrs["index"]): Edge(n.name, 0) for n in graph.nodes.values() if n.op == ARG}
    results = {int(n.attrs["index"]): n.inputs[0] for n in graph.nodes.values() if n.op == RETVAL}
    scope, made = walk(
        graph,
        [results[i] for i in range(len(outputs))],
        {args[i]: name for i, name in enumerate(inputs)},
        opset,
        reserved=outputs,
        impossible=changing(step),
    )
    return assembled(scope, dict(zip(outputs, made, strict=True)))


def _write(model: ModelProto, path: Path, external_data: bool | None) -> None:
    size = sum(len(each.raw_data) for each in model.graph.initializer)
    if external_data is False and size > _LARGEST:
        raise InvalidArgumentError(
            "the model is too large for one file",
            expected="external_data=True, or at most 2 GB",
            actual=f"{size} bytes",
        )
    if external_data or size > _LARGEST:
        onnx.save_model(
            model,
            path,
            save_as_external_data=True,
            all_tensors_to_one_file=True,
            location=f"{path.name}.data",
            size_threshold=_KEPT_INSIDE,
        )
    else:
        onnx.save_model(model, path)
