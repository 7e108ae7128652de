"""`export`: conversion of a session, a graph or a model to a ModelProto, and to a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import onnx
from onnx import ModelProto

from aioflow.arguments import brief
from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.compiler.prune import StepRequest, prune
from aioflow.concurrency.threads import in_thread
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.formats.files import file_errors
from aioflow.graph.boundary import ARG, RETVAL
from aioflow.graph.graph import Graph, Tensor
from aioflow.interop.model import Model
from aioflow.interop.onnx.exporting.assembly import assembled
from aioflow.interop.onnx.exporting.frozen import changing, frozen, handles, optimized, values_of
from aioflow.interop.onnx.exporting.fusing import fused
from aioflow.interop.onnx.exporting.types import is_exportable, no_form
from aioflow.interop.onnx.exporting.walk import walk
from aioflow.memory.values import Array
from aioflow.ops.variables.variable import Variable
from aioflow.session.fetches import FetchMapper
from aioflow.session.session import Session

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


# -- inputs and outputs ------------------------------------------------------------------------------------------------


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


# -- the model ---------------------------------------------------------------------------------------------------------


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
