"""The `onnx.backend.base.Backend` API, which blocks: for scripts, and for the onnx package's own tests.

    import aioflow.interop.onnx.backend as backend

    [y] = backend.run_model(model, [x])

A server should instead call `load`, and await `Session.run` of the result.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aioflow.loading.later import not_installed
from aioflow.memory.values import Value

try:
    from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper
    from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict
except ImportError as error:
    raise not_installed(__name__, "onnx", error) from error

from aioflow.config import SessionConfig
from aioflow.errors import InvalidArgumentError
from aioflow.interop.onnx.loading import load, read_model
from aioflow.interop.onnx.schemas import NEWEST
from aioflow.session.session import Session


class AioflowRep(BackendRep):
    """A model with its own session.

    Attributes:
        model: The imported model.
    """

    def __init__(self, proto: ModelProto, config: SessionConfig | None = None) -> None:
        self.model = model = load(proto)
        self._types = {each.name: each.type for each in (*proto.graph.input, *proto.graph.output)}
        self._session = Session(graph=model.graph, config=config)
        self._outputs = namedtupledict("Outputs", list(model.outputs))

    def run(self, inputs: Sequence[Value] | Mapping[str, Value], **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs as a named tuple.

        Args:
            inputs: The values by name, or in the order of the model's inputs, those with a default value last.
            kwargs: As for `Session.run`.

        Raises:
            InvalidArgumentError: there are too few or too many inputs, or one has an unknown name.
        """
        signature = self.model.signature()
        known = signature.all_inputs
        # Not strict, since optional inputs may be missing; surplus values are noticed by their count below.
        given = inputs if isinstance(inputs, Mapping) else dict(zip(known, inputs, strict=False))
        if not set(signature.inputs) <= set(given) <= set(known) or len(given) != len(inputs):
            raise InvalidArgumentError(
                "the inputs are not those of the model", expected=list(known), actual=len(inputs)
            )
        feeds = {known[name]: _listed(value, self._types[name]) for name, value in given.items()}
        values = self._session.run_sync(dict(self.model.outputs), feeds, **kwargs)
        found: tuple[Any, ...] = self._outputs(
            *(_in_onnx_form(value, self._types[name]) for name, value in values.items())
        )
        return found

    def close(self) -> None:
        """Close the session."""
        with self._session:  # the last exit closes the session
            pass


class AioflowBackend(Backend):
    """The ONNX backend that runs models with aioflow."""

    @classmethod
    def prepare(
        cls, model: ModelProto | bytes | str | os.PathLike[str], device: str = "CPU", **kwargs: Any
    ) -> AioflowRep:
        """Return a model that can be run repeatedly.

        Args:
            model: The model, its bytes, or its path.
            device: "CPU".
            kwargs: `config`, a SessionConfig.

        Raises:
            InvalidArgumentError: the device does not exist.
            UnsupportedError: the model has ops that cannot be imported.
        """
        if not cls.supports_device(device):
            raise InvalidArgumentError("there is no such device", expected="CPU", actual=device)
        return AioflowRep(read_model(model)[0], kwargs.get("config"))

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Sequence[Value],
        device: str = "CPU",
        outputs_info: object = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Return the outputs of one node.

        Args:
            node: The node.
            inputs: Arrays, one for each input that the node has.
            device: "CPU".
            outputs_info: Ignored.
            kwargs: `opset_version`, by default the newest; `config`, a SessionConfig.

        Raises:
            InvalidArgumentError: the device does not exist, or an input is not an array.
            UnsupportedError: the op cannot be imported.
        """
        # An omitted input has an empty name, and no array.
        names = [name for name in node.input if name]
        wrapped = [_info(name, value) for name, value in zip(names, inputs, strict=True)]
        outputs = [ValueInfoProto(name=name) for name in node.output if name]
        version = kwargs.get("opset_version", NEWEST.get(node.domain, 1))
        graph = helper.make_graph([node], "node", wrapped, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
        rep = cls.prepare(model, device, **kwargs)
        try:
            return rep.run(inputs)
        finally:
            rep.close()

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether models run on this kind of device."""
        return bool(Device(device).type == DeviceType.CPU)


def _listed(value: Value, proto: TypeProto) -> Value:
    """Return the feed for a value. An optional value becomes a list with one element, or an empty list for None."""
    if proto.WhichOneof("value") == "optional_type":
        return [] if value is None else [_listed(value, proto.optional_type.elem_type)]
    return value


def _in_onnx_form(value: Any, proto: TypeProto) -> Any:
    """Return a fetched value in ONNX's form: text as `str`, an optional value as its element or None."""
    if proto.WhichOneof("value") == "optional_type":
        return _in_onnx_form(value[0], proto.optional_type.elem_type) if value else None
    # A sequence of maps is a list of dictionaries already.
    if proto.WhichOneof("value") == "sequence_type" and proto.sequence_type.elem_type.HasField("map_type"):
        return value
    if proto.WhichOneof("value") == "sequence_type":
        return [_in_onnx_form(item, proto.sequence_type.elem_type) for item in value]
    array = np.asarray(value)
    if array.dtype.kind not in "OS":
        return array
    return np.array([v.decode() for v in array.reshape(-1)], object).reshape(array.shape)


def _info(name: str, value: Any) -> ValueInfoProto:
    array = value if hasattr(value, "dtype") else None
    if array is None:
        raise InvalidArgumentError(f"the input {name!r} is no array", expected="an array", actual=type(value).__name__)
    kind = TensorProto.STRING if array.dtype.kind in "OSU" else helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape)


prepare = AioflowBackend.prepare
run_model = AioflowBackend.run_model
run_node = AioflowBackend.run_node
supports_device = AioflowBackend.supports_device
is_compatible = AioflowBackend.is_compatible
