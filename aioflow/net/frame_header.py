"""The header of a frame: a small msgpack document, checked by both sender and receiver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias

import msgpack

from aioflow.arguments import brief
from aioflow.errors import DataLossError, InvalidArgumentError, OpError, ResourceExhaustedError
from aioflow.memory.values import Buffer
from aioflow.net.limits import Limits
from aioflow.net.tensor_format import TensorHeader, parse_spec

# The encoding of empty bytes, which may also occur inside another value. Other bytes are rejected by `max_bin_len`.
_NO_BYTES: Final = b"\xc4\x00"


Document: TypeAlias = Mapping[str, Any]  # the part of a header that is for the receiver; untrusted until parsed


class Packed(dict[str, Any]):
    """A document that is sent many times, mostly with tensors of the same specs, so that its encoded header is cached.

    It must not be changed.
    """

    __slots__ = ("_known",)

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        # One tuple, replaced as a whole, because several threads may send the document.
        self._known: tuple[list[TensorHeader] | None, bytes] = None, b""

    def header(self, specs: list[TensorHeader], limits: Limits) -> bytes:
        """Return the encoded header; see `encode_header`."""
        known, header = self._known
        if specs != known:
            header = encode_header(specs, self, limits)
            self._known = specs, header
        return header


def encode_header(specs: Sequence[TensorHeader], document: Document, limits: Limits) -> bytes:
    """Encode the specs of the tensors and the document.

    Raises:
        InvalidArgumentError: the document has values that are not plain data.
        ResourceExhaustedError: the header exceeds a limit.
    """
    try:
        header: bytes = msgpack.packb([[spec.document() for spec in specs], document])
    except (ValueError, OverflowError, TypeError) as error:
        raise InvalidArgumentError(f"the header of a message cannot be encoded: {error}") from error
    check_counts(len(header), len(specs), 0, limits)
    try:
        # Decode it here as the peer will, which would close the connection over an invalid header. The slower check of
        # pairs is needed only for bytes, because the keys of a dictionary are unique already.
        unpacked = _unpack(header, limits, _unique if _NO_BYTES in header else None)[1]
    except DataLossError as error:
        raise InvalidArgumentError(f"the header of a message is not a plain document: {error.message}") from error
    if type(unpacked) is not dict:
        raise InvalidArgumentError("the header of a message is not a map", actual=type(document).__name__)
    return header


def decode_header(data: Buffer, limits: Limits) -> tuple[list[TensorHeader], dict[str, Any]]:
    """Decode a header to the specs of the tensors and the document.

    Raises:
        DataLossError: it is malformed, or has values that are not plain data.
        ResourceExhaustedError: a spec exceeds a limit.
    """
    decoded = _unpack(data, limits, _unique)
    if not (isinstance(decoded, list) and len(decoded) == 2 and isinstance(decoded[0], list)):
        raise DataLossError("a malformed header", expected="tensors and a document", actual=type(decoded).__name__)
    if not isinstance(decoded[1], dict):
        raise DataLossError("a malformed header", expected="a map", actual=type(decoded[1]).__name__)
    return [parse_spec(item, limits) for item in decoded[0]], decoded[1]


def _unpack(data: Buffer, limits: Limits, pairs: Callable[[list[tuple[object, object]]], object] | None) -> Any:
    try:
        # `unpackb` creates a new unpacker, so that a failure leaves no state behind.
        return msgpack.unpackb(
            data,
            raw=False,
            use_list=True,
            strict_map_key=True,
            object_pairs_hook=pairs,
            ext_hook=_refuse_extension,
            max_bin_len=0,
            max_ext_len=0,
            max_array_len=limits.header_items,
            max_map_len=limits.header_items,
        )
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        if isinstance(error, OpError):
            raise
        raise DataLossError(f"a malformed header: {type(error).__name__}: {error}") from error


def _refuse_extension(code: int, data: bytes) -> NoReturn:
    raise DataLossError("an extension type in a header", expected="plain values", actual=f"extension {code}")


def _unique(pairs: list[tuple[object, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        # `strict_map_key` of msgpack also admits bytes as keys, and a repeated key would replace the earlier value.
        if type(key) is not str or key in found or isinstance(value, bytes):
            raise DataLossError("a header has a duplicate or non-text key, or bytes", actual=brief(key))
        found[key] = value
    return found


def check_counts(header: int, tensors: int, payload: int, limits: Limits) -> None:
    """Raise ResourceExhaustedError if a size of a message exceeds its limit."""
    # One test for the usual case; the loop only finds the limit to name in the error.
    if header <= limits.header_bytes and tensors <= limits.tensors and payload <= limits.tensor_bytes:
        return
    for what, actual, most in (
        ("header bytes", header, limits.header_bytes),
        ("tensors", tensors, limits.tensors),
        ("tensor bytes", payload, limits.tensor_bytes),
    ):
        if actual > most:
            raise ResourceExhaustedError(f"{what} of one message", expected=f"at most {most}", actual=actual)
