"""Nodes of other domains without a translation; an installed engine for ONNX models computes each unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

import numpy as np
from google.protobuf.message import DecodeError, Message
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from aioflow.errors import InvalidArgumentError, NotFoundError, OpError
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims
from aioflow.interop.onnx.schemas import NEWEST
from aioflow.interop.onnx.sequences import kind_of, type_of
from aioflow.interop.onnx.translating import OnnxNode
from aioflow.ops.apply import make_op
from aioflow.ops.delegated import ONNX_NODE
from aioflow.runtime.delegates import declared_engines

_IR: Final = 9  # version of the format that older engines also read


@runtime_checkable
class OnnxEngine(Protocol):
    """An engine (`aioflow.delegates`) that has a kernel for the op `OnnxNode`."""

    def outputs_of(self, model: bytes) -> Sequence[tuple[DType, Dims]]:
        """Return the dtype of each output of a model, and its shape as far as it is known.

        Raises:
            NotFoundError: the engine does not have the op.
            OpError: the engine rejects the node.
        """


def node_by_engine(
    node: OnnxNode, domain: str, opsets: Mapping[str, int], inputs: Sequence[object]
) -> list[Tensor | None]:
    """Return the outputs of a node that the engine computes; None for unused outputs.

    Raise Refused if no installed engine has the op, or an input is not a tensor.
    """
    if not any(node.outputs):
        return [None for _ in node.outputs]
    given = [each for each in inputs if isinstance(each, Tensor)]
    if any(each is not None and not isinstance(each, Tensor) for each in inputs):
        node.refuse("an engine takes tensors only")
    model = _model(node, domain, opsets, inputs).SerializeToString()
    outputs = _outputs(node, model)
    made = iter(
        make_op(
            ONNX_NODE,
            given,
            Tout=[dtype for dtype, _ in outputs],
            model=np.frombuffer(model, np.uint8),
            output_shapes=[dims for _, dims in outputs],
        ).outputs
    )
    return [next(made) if name else None for name in node.outputs]


def model_of_node(data: bytes) -> ModelProto:
    """Return the model of an `OnnxNode`, which may come from an untrusted source.

    Raises:
        InvalidArgumentError: the model cannot be read, or refers to other files, which an engine would read.
    """
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise InvalidArgumentError("the model of the node cannot be read", expected="a ModelProto") from error
    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
            raise InvalidArgumentError(
                "the model of the node has values in other files", expected="values in the model", actual=tensor.name
            )
    return model


def _model(node: OnnxNode, domain: str, opsets: Mapping[str, int], inputs: Sequence[object]) -> ModelProto:
    proto = NodeProto(op_type=node.proto.op_type, domain=domain, name=node.name)
    for name, attribute in node.attributes.items():
        proto.attribute.add().CopyFrom(attribute)
        # References to attributes of a function are resolved here; outside of the function they would have no meaning.
        proto.attribute[-1].name, proto.attribute[-1].ref_attr_name = name, ""
    graph = GraphProto(name="node")
    for index, value in enumerate(inputs):
        proto.input.append("" if value is None else f"input_{index}")
        if value is not None:
            graph.input.append(ValueInfoProto(name=proto.input[-1], type=type_of(kind_of(value))))
    for index, name in enumerate(node.outputs):
        # Name all outputs: some of onnxruntime's kernels crash if one has no name.
        proto.output.append(f"output_{index}")
        if name:
            graph.output.append(ValueInfoProto(name=proto.output[-1]))  # the engine infers the type
    graph.node.append(proto)
    # The model declares no later opset than the installed onnx knows.
    versions = {"": min(NEWEST[""], opsets.get("", NEWEST[""])), domain: opsets.get(domain, 1)}
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*each) for each in versions.items()])
    model.ir_version = _IR
    # Attributes with values in other files are rejected here, not only when a step runs.
    return model_of_node(model.SerializeToString())


def _outputs(node: OnnxNode, model: bytes) -> Sequence[tuple[DType, Dims]]:
    reasons: list[str] = []
    for load in declared_engines().values():
        try:
            engine = load("")
        except NotFoundError as error:  # `expected` is the command that installs the engine
            reasons.append(f"an engine may have it: {error.expected}")
            continue
        if isinstance(engine, OnnxEngine):
            try:
                return engine.outputs_of(model)
            except NotFoundError:
                continue
            except OpError as error:
                # Another engine may still accept the node.
                reasons.append(error.message)
    return node.refuse("; ".join(["no such op", *reasons]))


def _tensors(message: Message) -> Iterator[TensorProto]:
    """Yield the tensors of a model, including those of attribute graphs and of sparse tensors."""
    waiting: list[Message] = [message]
    while waiting:
        each = waiting.pop()
        if isinstance(each, TensorProto):
            yield each
            continue
        for field, value in each.ListFields():
            if field.message_type is not None:
                # A repeated field is a sequence of messages, a single one the message itself.
                waiting.extend([value] if isinstance(value, Message) else value)
