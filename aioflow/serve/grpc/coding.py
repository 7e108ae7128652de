"""Coding of gRPC messages: requests to the form that all transports share, and tensors from and to their fields."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.memory.values import Array, Buffer
from aioflow.protos.messages import Message
from aioflow.serve.grpc.messages import message, parsed
from aioflow.serve.protocol import (
    InferRequest,
    InferResponse,
    Limits,
    MalformedRequestError,
    RequestedOutput,
    TooLargeError,
    datatype_of,
    spelled,
)
from aioflow.serve.protocol.binary_data import from_bytes, to_bytes
from aioflow.serve.protocol.messages import Parameters, check_count, read_input, read_output, scheduling
from aioflow.serve.protocol.schemas import SCHEDULING

# ── the top-level fields of an encoded message; large fields are located in place, without a copy ─────────────────────
#
# A protocol buffer is a sequence of fields. Each begins with its number and wire type as one varint (seven bits a
# byte), followed by its value. Only fields with the same number have an order among themselves.


BYTES: Final = 2  # wire type of length-prefixed values: bytes, text, messages
_VARINT: Final = 0
_FIXED: Final = {1: 8, 5: 4}  # size in bytes of the wire types with a fixed size
_MOST: Final = 10  # bytes of a 64-bit varint


class WireField(NamedTuple):
    """A field: number, wire type, and the offsets of its begin, of its value, and of its end."""

    number: int
    kind: int
    begin: int
    inside: int
    end: int


def fields_of(data: bytes) -> Iterator[WireField]:
    """Yield the fields of a message in order. Raise MalformedRequestError if the bytes are not a message."""
    at, total = 0, len(data)
    while at < total:
        begin = at
        # The low three bits of the tag are the wire type, the others the field number.
        tag, at = _whole(data, at, total)
        number, kind = tag >> 3, tag & 7
        if kind == BYTES:
            size, at = _whole(data, at, total)
            end = at + size
        elif kind == _VARINT:
            end = _whole(data, at, total)[1]
        elif kind in _FIXED:
            end = at + _FIXED[kind]
        else:
            # A group, which no message here has, or an unknown wire type.
            raise _wrong(begin)
        # Field number 0 is invalid in every protocol buffer.
        if end > total or not number:
            raise _wrong(begin)
        yield WireField(number, kind, begin, at, end)
        at = end


def _whole(data: bytes, at: int, total: int) -> tuple[int, int]:
    """Return the varint at an offset, and the offset of its end."""
    value = 0
    for index in range(_MOST):
        if at + index >= total:
            break
        byte = data[at + index]
        # The least significant seven bits come first; the highest bit of a byte says that another follows.
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, at + index + 1
    raise _wrong(at)


def _wrong(at: int) -> MalformedRequestError:
    return MalformedRequestError("the request is no protocol buffer", expected="a field", actual=f"others at byte {at}")


def field_head(number: int, size: int) -> bytes:
    """Return the bytes that precede a value of `size` bytes in a field of this number."""
    return _encoded(number << 3 | BYTES) + _encoded(size)


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


# ── tensors as numbers in a message, in the field of their dtype; half precision, without a field, is sent as bytes ───


FIELDS: Final[Mapping[DType, str]] = {
    dtypes.bool_: "bool_contents",
    dtypes.int8: "int_contents",
    dtypes.int16: "int_contents",
    dtypes.int32: "int_contents",
    dtypes.int64: "int64_contents",
    dtypes.uint8: "uint_contents",
    dtypes.uint16: "uint_contents",
    dtypes.uint32: "uint_contents",
    dtypes.uint64: "uint64_contents",
    dtypes.float32: "fp32_contents",
    dtypes.float64: "fp64_contents",
    dtypes.string: "bytes_contents",
}
_WIDE: Final = {"int_contents": np.int32, "uint_contents": np.uint32}  # fields that also hold narrower types


def from_contents(contents: Message, dtype: DType, shape: tuple[int, ...], name: str) -> Array:
    """Return the array in the contents of an input.

    Raises:
        MalformedRequestError: the elements are in another field, too many or too few, or do not fit the dtype.
    """
    wanted = FIELDS.get(dtype)
    if wanted is None:
        raise MalformedRequestError(
            f"input {name!r} has a datatype that can be sent only as raw bytes",
            expected="raw_input_contents",
            actual=datatype_of(dtype, f"input {name!r}"),
        )
    given = [field.name for field, _ in contents.ListFields()]
    # Protocol buffers do not send empty lists, so a tensor without elements may have no field at all.
    if given not in ([wanted], []):
        raise MalformedRequestError(
            f"input {name!r} has contents that do not match its datatype", expected=wanted, actual=", ".join(given)
        )
    values = getattr(contents, wanted)
    count = math.prod(shape)
    if len(values) != count:
        raise MalformedRequestError(
            f"input {name!r} has a number of elements that does not match its shape",
            expected=f"{count} for {list(shape)}",
            actual=len(values),
        )
    if dtype is dtypes.string:
        array = np.empty(count, np.object_)
        # Assigned element by element: `np.array` would cut trailing null bytes off by choosing a fixed-width dtype.
        array[:] = values
        return array.reshape(shape)
    array = np.fromiter(values, _WIDE.get(wanted, dtype.np_dtype), count)
    # A 32-bit field also carries 8 and 16 bits, and a value out of range would wrap around silently.
    narrow = array.astype(dtype.np_dtype, copy=False)
    if narrow is not array and not np.array_equal(narrow, array):
        raise MalformedRequestError(f"an element of input {name!r} does not fit its datatype", expected=spelled(dtype))
    return narrow.reshape(shape)


def to_contents(array: Array, dtype: DType, contents: Message) -> None:
    """Write an array into the field of its dtype, which must be in `FIELDS`."""
    getattr(contents, FIELDS[dtype]).extend(array.reshape(-1).tolist())


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# Tensors sent as bytes become views of the message. The remainder must be small; this is checked before protobuf
# allocates memory for it.


_INPUTS, _OUTPUTS, _RAW = 5, 6, 7  # fields of ModelInferRequest
_COUNTED: Final = {_INPUTS: "inputs", _OUTPUTS: "outputs", _RAW: "raw_input_contents"}
_OTHERS: Final = 1024  # limit for all other fields: the name, the parameters, and fields of later protocols


@dataclass(frozen=True, slots=True)
class UndecodedRequest:
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


def split_request(data: bytes, limits: Limits) -> UndecodedRequest:
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
    return UndecodedRequest(data, parsed("ModelInferRequest", b"".join(pieces)), tuple(raw))


def check_rest(size: int, limits: Limits) -> None:
    """Raise TooLargeError if the message without raw contents exceeds the limits: parsing it takes long."""
    if size > limits.json_bytes:
        raise TooLargeError(
            "the request is too large without its raw_input_contents; tensors may be sent as these",
            expected=f"at most {limits.json_bytes} bytes",
            actual=size,
        )


def decode_split(asked: UndecodedRequest, limits: Limits) -> InferRequest:
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
        name, own = read_output({"name": entry.name, "parameters": parameters_of(entry.parameters)}, outputs)
        outputs[name] = RequestedOutput(name, binary, own.get("classification", 0))
    wanted = tuple(outputs.values()) or None
    return InferRequest(inputs, wanted, asked.head.id, binary, timeout, priority, parameters)


def _inputs(asked: UndecodedRequest, limits: Limits) -> dict[str, Array]:
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


# ── encoding of gRPC inference responses: arrays to the bytes of a message ────────────────────────────────────────────

_RAW_OUTPUT: Final = 6  # raw_output_contents of ModelInferResponse


def encode_answer(response: InferResponse, binary: bool, parameters: Parameters | None = None) -> bytes:
    """Encode a response as a message. The outputs are copied only once.

    Args:
        response: The response.
        binary: Whether to send the outputs as bytes. All outputs are sent as bytes in any case if one has a dtype
            without a contents field.
        parameters: Parameters of the response: bools and texts.

    Raises:
        UnimplementedError: the protocol has no name for the dtype of an output.
    """
    found = {name: (array, as_dtype(array.dtype)) for name, array in response.outputs.items()}
    # The protocol allows raw contents for all outputs of a message or for none.
    as_bytes = binary or any(dtype not in FIELDS for _, dtype in found.values())
    head = message("ModelInferResponse")(
        model_name=response.model_name, model_version=response.model_version, id=response.id
    )
    for key, value in (parameters or {}).items():
        setattr(head.parameters[key], "bool_param" if isinstance(value, bool) else "string_param", value)
    tails: list[Buffer] = []
    for name, (array, dtype) in found.items():
        entry = head.outputs.add(name=name, datatype=datatype_of(dtype, f"output {name!r}"), shape=array.shape)
        if not as_bytes:
            to_contents(array, dtype, entry.contents)
            continue
        data = to_bytes(array, dtype)
        # Repeated fields may follow the rest of the message, so the tensors are joined behind it without passing
        # protobuf.
        tails += (field_head(_RAW_OUTPUT, len(data)), data)
    return b"".join([head.SerializeToString(), *tails])
