"""Validation of the arguments of `save`: signatures and variables of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aioflow.arguments import check_kind
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.graph import Graph, GraphKeys, Operation, Tensor
from aioflow.graph.graphdef import GraphDef
from aioflow.interop.model import DEFAULT_SIGNATURE, Signature
from aioflow.ops.apply import make
from aioflow.ops.variables.variable import Variable
from aioflow.saved.manifest import StoredSignature, TensorInfo, Weight
from aioflow.saved.pruning import VARIABLE

_KEPT_IN: Final = (GraphKeys.GLOBAL_VARIABLES, GraphKeys.LOCAL_VARIABLES, GraphKeys.MODEL_VARIABLES)


def calls_of(graph: Graph, signatures: Any) -> dict[str, Signature]:
    if isinstance(signatures, Signature):
        signatures = {DEFAULT_SIGNATURE: signatures}
    check_kind(signatures, Mapping, "the signatures", "a Signature, or a dictionary of some by name")
    if not signatures:
        raise InvalidArgumentError("a model needs a signature", expected="at least one", actual="none")
    return {name: _call(graph, name, signature) for name, signature in signatures.items()}


def _call(graph: Graph, name: str, signature: Any) -> Signature:
    check_kind(name, str, "the name of a signature", "a str")
    if isinstance(signature, tuple) and len(signature) == 2:
        signature = Signature(*signature)
    check_kind(signature, Signature, f"signature {name!r}", "a Signature, or two dictionaries: inputs and outputs")
    inputs, outputs = (_tensors(graph, name, given) for given in (signature.inputs, signature.outputs))
    if not outputs:
        raise InvalidArgumentError(f"signature {name!r} has no outputs", expected="at least one", actual="none")
    twice = len(set(inputs.values())) < len(inputs)
    if twice:
        raise InvalidArgumentError(f"two inputs of signature {name!r} are one tensor", expected="a tensor for each")
    return Signature(inputs, outputs, signature.method)


def _tensors(graph: Graph, signature: str, given: Any) -> dict[str, Tensor]:
    check_kind(given, Mapping, f"the tensors of signature {signature!r}", "a dictionary of tensors by name")
    found: dict[str, Tensor] = {}
    for name, value in given.items():
        check_kind(name, str, f"a name of signature {signature!r}", "a str")
        tensor: Any = graph.as_graph_element(value, allow_operation=False)
        # Handles have no meaning outside of the process.
        if tensor.dtype in (dtypes.resource, dtypes.variant):
            raise DTypeError(
                f"{name!r} of signature {signature!r} is a handle", expected="a tensor of values", actual=tensor.dtype
            )
        found[name] = tensor
    return found


def stored(signature: Signature) -> StoredSignature:
    inputs, outputs = (
        tuple(TensorInfo(name, tensor.name, tensor.dtype, tensor.dims) for name, tensor in tensors.items())
        for tensors in (signature.inputs, signature.outputs)
    )
    return StoredSignature(inputs, outputs, signature.method)


def variables_of(graph: Graph, definition: GraphDef) -> tuple[tuple[Weight, ...], list[Operation]]:
    """Return the variables of a definition, and the operations of their handles."""
    handles = [graph.get_operation_by_name(node.name) for node in definition.nodes if node.op == VARIABLE]
    known = _known(graph)
    # A variable without an entry in any collection counts as trainable below.
    trained = {v.handle.op for v in graph.get_collection(GraphKeys.TRAINABLE_VARIABLES) if hasattr(v, "handle")}
    weights = [
        Weight(handle.name, handle.attrs["dtype"], handle.attrs["shape"], handle not in known or handle in trained)
        for handle in handles
    ]
    return tuple(weights), handles


def _known(graph: Graph) -> dict[Operation, Variable]:
    return {v.handle.op: v for key in _KEPT_IN for v in graph.get_collection(key) if hasattr(v, "handle")}


def reads_of(graph: Graph, handles: list[Operation]) -> list[Tensor]:
    """Return a fetchable read of each variable."""
    known = _known(graph)
    plain = _plain_reads(graph) if any(handle not in known for handle in handles) else {}
    reads = []
    for handle in handles:
        variable = known.get(handle)
        # An existing read is preferred, since a finalized graph takes no new nodes.
        read = plain.get(handle) if variable is None else _value(graph, variable)
        reads.append(_new_read(graph, handle) if read is None else read)
    return reads


def _value(graph: Graph, variable: Variable) -> Tensor:
    with graph.as_default(), graph.control_dependencies(None):
        found: Tensor = variable.value()
        return found


def _plain_reads(graph: Graph) -> dict[Operation, Tensor]:
    """Return, for each handle that has one, a fetchable read without control inputs."""
    return {
        op.inputs[0].op: op.outputs[0]
        for op in graph.get_operations()
        if op.type == "ReadVariableOp" and not op.waits_for and graph.is_fetchable(op)
    }


def _new_read(graph: Graph, handle: Operation) -> Tensor:
    with graph.as_default(), graph.control_dependencies(None), graph.colocate_with(handle):
        found: Tensor = make("ReadVariableOp", handle.outputs[0], dtype=handle.attrs["dtype"])
        return found
