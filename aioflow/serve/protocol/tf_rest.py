"""TensorFlow Serving's REST API: decoding of `:predict`, `:classify` and `:regress` requests, and of their results."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from aioflow.formats.example import FeatureKind, encode_example
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.graph.graph import Tensor
from aioflow.interop.model import Signature
from aioflow.memory.values import Array, Buffer
from aioflow.serve.protocol.errors import MalformedRequestError, TooLargeError
from aioflow.serve.protocol.json_data import from_json
from aioflow.serve.protocol.json_text import PIECE, JsonObject
from aioflow.serve.protocol.limits import Limits
from aioflow.serve.protocol.messages import InferRequest, InferResponse, check_count, scheduling
from aioflow.serve.protocol.rest import json_object
from aioflow.serve.protocol.schemas import FORMS, SCHEDULING, shown

_REQUEST: Final = FORMS["PredictRequest"]
_EXAMPLES: Final = FORMS["ExamplesRequest"]
_FEATURES: Final[Mapping[FeatureKind, DType]] = {
    "bytes": dtypes.string,
    "float": dtypes.float32,
    "int64": dtypes.int64,
}
_BASE64: Final = "b64"
_BYTES: Final = "_bytes"  # the suffix of the names of outputs that are bytes, not text

Signatures = Callable[[str | None], Signature]  # by name, and the default one by None

# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Prediction:
    """A decoded request, and whether it has the row format, which the response has, too."""

    request: InferRequest
    is_row: bool


def decode_predict(body: Buffer, signature_of: Signatures, limits: Limits) -> Prediction:
    """Decode the body of a `:predict` request.

    Args:
        body: The body.
        signature_of: Returns the signature with a name. The request states neither dtypes nor shapes.
        limits: The limits.

    Raises:
        MalformedRequestError: the request violates the protocol, or has other inputs than the signature.
        TooLargeError: the request exceeds the limits.
    """
    document = json_object(body, limits)
    _REQUEST.check(document, "the request")
    parameters = dict(document.get("parameters") or {})
    SCHEDULING.check(parameters, "the request")
    name = document.get("signature_name") or None
    inputs = signature_of(name).all_inputs
    if name is not None:
        parameters["signature"] = name
    if ("instances" in document) == ("inputs" in document):
        raise MalformedRequestError("the request has no values, or two", expected="either 'instances' or 'inputs'")
    is_row = "instances" in document
    values = _of_rows(document["instances"], inputs) if is_row else _of_columns(document["inputs"], inputs)
    check_count(len(values), "inputs", limits)
    arrays = {each: _array(value, inputs, each, limits) for each, value in values.items()}
    timeout, priority = scheduling(parameters)
    return Prediction(InferRequest(arrays, timeout=timeout, priority=priority, parameters=parameters), is_row)


def _of_rows(rows: list[Any], inputs: Mapping[str, Tensor]) -> JsonObject:
    """Return the values of each input from a list of rows."""
    if not rows:
        raise MalformedRequestError("'instances' is empty", expected="one instance or more")
    is_named = _is_object(rows[0])
    if any(_is_object(row) is not is_named for row in rows):
        raise MalformedRequestError("'instances' has objects and plain values", expected="one kind")
    if not is_named:
        return {_only(inputs): rows}
    if any(row.keys() != rows[0].keys() for row in rows):
        raise MalformedRequestError(
            "the objects in 'instances' have different names", expected=f"{list(inputs)} in each"
        )
    return {name: [row[name] for row in rows] for name in rows[0]}


def _of_columns(columns: Any, inputs: Mapping[str, Tensor]) -> JsonObject:
    found: JsonObject = columns if _is_object(columns) else {_only(inputs): columns}
    return found


def _is_object(value: object) -> bool:
    """Return True for an object by input name, which is not the encoding of a byte string."""
    return type(value) is dict and not (value.keys() == {_BASE64} and type(value[_BASE64]) is str)


def _only(inputs: Mapping[str, Tensor]) -> str:
    if len(inputs) != 1:
        raise MalformedRequestError("the model has several inputs", expected=f"objects with {list(inputs)}")
    return next(iter(inputs))


def _array(value: Any, inputs: Mapping[str, Tensor], name: str, limits: Limits) -> Array:
    if name not in inputs:
        raise MalformedRequestError(
            "the model has no such input", expected=f"one of {list(inputs)}", actual=shown(name)
        )
    shape: list[int] = []
    level = value
    # The first elements state the shape; `from_json` checks that the others match it.
    while type(level) is list:
        if len(shape) == limits.rank:
            raise TooLargeError(
                f"input {name!r} has too many axes", expected=f"at most {limits.rank}", actual="deeper lists"
            )
        shape.append(len(level))
        level = level[0] if level else None
    return from_json(value, inputs[name].dtype, tuple(shape), name, has_base64=True)


def decode_examples(body: Buffer, signature_of: Signatures, method: str, limits: Limits) -> InferRequest:
    """Decode the body of a `:classify` or `:regress` request: examples for the only input of the signature.

    Args:
        body: The body.
        signature_of: As for `decode_predict`.
        method: The method that the signature must have: "classify" or "regress".
        limits: The limits.

    Raises:
        MalformedRequestError: the request violates the protocol, or the signature has another method.
        TooLargeError: the request exceeds the limits.
    """
    document = json_object(body, limits)
    _EXAMPLES.check(document, "the request")
    parameters = dict(document.get("parameters") or {})
    SCHEDULING.check(parameters, "the request")
    name = document.get("signature_name") or None
    signature = signature_of(name)
    if name is not None:
        parameters["signature"] = name
    if signature.method != f"tensorflow/serving/{method}" or [t.dtype for t in signature.inputs.values()] != [
        dtypes.string
    ]:
        raise MalformedRequestError(
            f"the signature cannot {method}",
            expected=f"the name of a signature with the method 'tensorflow/serving/{method}', or a call of :predict",
            actual=signature.method or "a signature without a method, for :predict only",
        )
    rows, context = document["examples"], document.get("context") or {}
    if not rows:
        raise MalformedRequestError("'examples' is empty", expected="one example or more")
    examples = np.empty(len(rows), np.object_)
    examples[:] = [_example(row, context) for row in rows]
    timeout, priority = scheduling(parameters)
    return InferRequest({_only(signature.inputs): examples}, timeout=timeout, priority=priority, parameters=parameters)


def _example(row: Any, context: JsonObject) -> bytes:
    """Return the bytes of an example with these features and those of the context."""
    if type(row) is not dict:
        raise MalformedRequestError("an element of 'examples' is not an object", actual=shown(row))
    if twice := row.keys() & context.keys():
        raise MalformedRequestError("a feature is in 'context' and in an example", actual=shown(min(twice)))
    try:
        return encode_example({name.encode(): _feature(each, name) for name, each in {**context, **row}.items()})
    except UnicodeEncodeError as error:
        raise MalformedRequestError("the name of a feature is not text", expected="UTF-8") from error


def _feature(value: Any, name: str) -> tuple[FeatureKind | None, list[Any]]:
    values = value if type(value) is list else [value]
    if not values:
        return None, []
    kinds = set(map(type, values))
    kind: FeatureKind = "bytes" if kinds & {str, dict} else "float" if float in kinds else "int64"
    if kind == "int64":
        values = [int(each) if type(each) is bool else each for each in values]
    found = from_json(values, _FEATURES[kind], (len(values),), f"feature {name:.60}", has_base64=True)
    return kind, found.tolist()


# ── responses ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_predict(response: InferResponse, is_row: bool) -> bytes:
    """Encode a response to a request in row or column format. NaN and infinities are written as such.

    Raises:
        MalformedRequestError: rows are requested and the outputs have no common number of them, or a string is not
            text.
    """
    outputs = {name: _plain(array, name) for name, array in response.outputs.items()}
    if is_row:
        return f'{{"predictions":[{",".join(_row_pieces(outputs))}]}}'.encode()
    texts = {name: _nested(array) for name, array in outputs.items()}
    if len(texts) == 1:
        (text,) = texts.values()
    else:
        text = f"{{{','.join(f'{json.dumps(name)}:{each}' for name, each in texts.items())}}}"
    return f'{{"outputs":{text}}}'.encode()


def encode_classes(response: InferResponse) -> bytes:
    """Encode a response of `:classify`: labels with their scores, for each example.

    Raises:
        MalformedRequestError: the outputs are not as for `encode_scores`, or a label is not text.
    """
    found = [_plain(response.outputs[name], name) for name in ("classes", "scores") if name in response.outputs]
    shapes = {array.shape for array in found}
    if len(shapes) != 1 or len(found[0].shape) != 2:
        raise _wrong_outputs(response, "'classes', 'scores' or both, of shape [examples, classes]")
    blank = np.empty(found[0].shape, np.object_)
    if "classes" not in response.outputs:
        blank[:] = ""
        found.insert(0, blank)
    elif "scores" not in response.outputs:
        blank[:] = 0.0
        found.append(blank)
    rows = [list(zip(*row, strict=True)) for row in zip(*(array.tolist() for array in found), strict=True)]
    return _dumped({"results": rows}).encode()


def encode_scores(response: InferResponse) -> bytes:
    """Encode a response of `:regress`: a number for each example.

    Raises:
        MalformedRequestError: the model has other outputs than the method of its signature demands.
    """
    array = response.outputs.get("outputs")
    if array is None or array.shape not in {(array.size,), (array.size, 1)}:
        raise _wrong_outputs(response, "'outputs' of shape [examples] or [examples, 1]")
    return _dumped({"results": _plain(array, "outputs").reshape(-1).tolist()}).encode()


def _wrong_outputs(response: InferResponse, expected: str) -> MalformedRequestError:
    actual = {name: list(array.shape) for name, array in response.outputs.items()}
    return MalformedRequestError("the signature has other outputs than its method", expected=expected, actual=actual)


def _row_pieces(outputs: Mapping[str, Array]) -> Iterator[str]:
    """Yield the rows as JSON without brackets, some at a time, because `dumps` holds the GIL until it returns."""
    sizes = {array.shape[:1] for array in outputs.values()}
    if len(sizes) != 1 or sizes == {()}:
        raise MalformedRequestError(
            "the outputs of the model are not rows, one for each instance",
            expected="a request in column format ('inputs')",
            actual=str({name: list(array.shape) for name, array in outputs.items()}),
        )
    ((count,),) = sizes
    step = max(1, PIECE * count // max(1, sum(array.size for array in outputs.values())))
    for at in range(0, count, step):
        parts = {name: array[at : at + step].tolist() for name, array in outputs.items()}
        if len(parts) == 1:
            (rows,) = parts.values()
        else:
            rows = [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]
        yield _dumped(rows)[1:-1]


def _nested(array: Array) -> str:
    if not array.shape:
        return _dumped(array.tolist())
    return f"[{','.join(_row_pieces({'': array}))}]"


def _plain(array: Array, name: str) -> Array:
    """Return an array whose elements JSON can represent."""
    dtype = as_dtype(array.dtype)
    if dtype is dtypes.string:
        encode = _as_base64 if name.endswith(_BYTES) else _as_text
        found = np.empty(array.size, np.object_)
        try:
            found[:] = [encode(item) for item in array.reshape(-1).tolist()]
        except UnicodeDecodeError as error:
            raise MalformedRequestError(
                f"output {name!r} is not UTF-8 text",
                expected=f"an output whose name ends with {_BYTES!r}, or the Open Inference Protocol (/v2)",
                actual="bytes that are not UTF-8",
            ) from error
        return found.reshape(array.shape)
    if dtype.is_floating and dtype.size < 8:
        # By way of text, so that a float of 32 bits is written with its own digits: 0.2, not 0.20000000298023224.
        return array.astype(np.float32).astype("U32").astype(np.float64)
    return array


def _as_text(item: bytes) -> str:
    return item.decode()


def _as_base64(item: bytes) -> dict[str, str]:
    return {_BASE64: base64.b64encode(item).decode()}


def _dumped(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
