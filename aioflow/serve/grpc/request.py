"""Decoding of gRPC inference requests to the form that all transports share.

Tensors sent as bytes become views of the message. The remainder must be small; this is checked before protobuf
allocates memory for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aioflow.memory.values import Array
from aioflow.protos.messages import Message
from aioflow.serve.grpc.contents import from_contents
from aioflow.serve.grpc.fields import BYTES, fields_of
from aioflow.serve.grpc.messages import parsed
from aioflow.serve.protocol import InferRequest, Limits, MalformedRequestError, RequestedOutput, TooLargeError
from aioflow.serve.protocol.binary_data import from_bytes
from aioflow.serve.protocol.messages import Parameters, scheduling
from aioflow.serve.protocol.schemas import SCHEDULING
from aioflow.serve.protocol.tensors import check_count, read_input, read_output

_INPUTS, _OUTPUTS, _RAW = 5, 6, 7  # fields of ModelInferRequest
_COUNTED: Final = {_INPUTS: "inputs", _OUTPUTS: "outputs", _RAW: "raw_input_contents"}
_OTHERS: Final = 1024  # limit for all other fields: the name, the parameters, and fields of later protocols


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of which only the target model is known.

    Attributes:
        data: The whole message.
        head: The message without the tensors sent as bytes.
        raw: The begin and end offsets of those tensors in `data`.
    """

    data: bytes
    head: Message
    raw: tuple[tuple[int, int], ...]

    @property
    def model_name(self) -> str:
        """The name of the requested model."""
        return str(self.head.model_name)

    @property
    def model_version(self) -> str | None:
        """The requested version; None for the newest."""
        return str(self.head.model_version) or None


def read_asked(data: bytes, limits: Limits) -> Asked:
    """Parse a message as a request, without its arrays.

    Raises:
        MalformedRequestError: the message cannot be parsed.
        TooLargeError: the message exceeds the limits.
    """
    pieces: list[memoryview] = []
    raw: list[tuple[int, int]] = []
    counts = dict.fromkeys(_COUNTED, 0)
    view, since, others = memoryview(data), 0, 0
    for field in fields_of(data):
        if field.number not in counts:
            others += 1
            # Each field costs a turn of this loop, and may be as short as two bytes.
            if others > _OTHERS:
                raise TooLargeError("the request has too many fields", expected=f"at most {_OTHERS} beside its tensors")
            continue
        counts[field.number] += 1
        check_count(counts[field.number], _COUNTED[field.number], limits)
        if field.number == _RAW:
            if field.kind != BYTES:
                raise MalformedRequestError("raw_input_contents are not bytes")
            # Fields may be interleaved in any order, so everything between two tensors is kept.
            pieces.append(view[since : field.begin])
            raw.append((field.inside, field.end))
            since = field.end
    pieces.append(view[since:])
    check_rest(sum(map(len, pieces)), limits)
    return Asked(data, parsed("ModelInferRequest", b"".join(pieces)), tuple(raw))


def check_rest(size: int, limits: Limits) -> None:
    """Raise TooLargeError if the message without raw contents exceeds the limits: parsing it takes long."""
    if size > limits.json_bytes:
        raise TooLargeError(
            "the request is too large without its raw_input_contents; tensors may be sent as these",
            expected=f"at most {limits.json_bytes} bytes",
            actual=size,
        )


def decode_asked(asked: Asked, limits: Limits) -> InferRequest:
    """Decode the request. Outputs are sent as bytes (`binary`) if the inputs were, or if there are no inputs.

    Raises:
        MalformedRequestError: the request violates the protocol.
        TooLargeError: the request exceeds the limits.
    """
    parameters = parameters_of(asked.head.parameters)
    SCHEDULING.check(parameters, "the request")
    timeout, priority = scheduling(parameters)
    inputs = _inputs(asked, limits)
    outputs: dict[str, RequestedOutput] = {}
    # gRPC has no parameter for the form of outputs; a client that sends raw bytes can also read them.
    binary = bool(asked.raw) or not inputs
    for entry in asked.head.outputs:
        name, _ = read_output({"name": entry.name, "parameters": parameters_of(entry.parameters)}, outputs)
        outputs[name] = RequestedOutput(name, binary)
    wanted = tuple(outputs.values()) or None
    return InferRequest(inputs, wanted, asked.head.id, binary, timeout, priority, parameters)


def _inputs(asked: Asked, limits: Limits) -> dict[str, Array]:
    entries, raw = asked.head.inputs, asked.raw
    if raw and len(raw) != len(entries):
        raise MalformedRequestError(
            "raw_input_contents are others than the inputs", expected=len(entries), actual=len(raw)
        )
    found: dict[str, Array] = {}
    for index, entry in enumerate(entries):
        given = {"name": entry.name, "datatype": entry.datatype, "shape": list(entry.shape)}
        given["parameters"] = parameters_of(entry.parameters)
        name, dtype, shape, _ = read_input(given, found, limits)
        if not raw:
            found[name] = from_contents(entry.contents, dtype, shape, name)
            continue
        if entry.HasField("contents"):
            raise MalformedRequestError(
                f"input {name!r} has both raw and typed contents", expected="raw_input_contents, or contents"
            )
        begin, end = raw[index]
        found[name] = from_bytes(asked.data, begin, end - begin, dtype, shape, name)
    return found


def parameters_of(given: Mapping[str, Message]) -> Parameters:
    """Convert parameters to Python values. Raise MalformedRequestError if one has no value."""
    found = {}
    for key, value in given.items():
        chosen = value.WhichOneof("parameter_choice")
        if chosen is None:
            raise MalformedRequestError(f"parameter {key[:60]!r} has no value")
        found[key] = getattr(value, chosen)
    return found
