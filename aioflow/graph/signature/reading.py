"""The notation of signatures, after TensorFlow's op registry: "x: T", "values: N*T", "T: {float32, int32}"."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.graph.signature.arguments import ArgDef
from aioflow.graph.signature.attributes import KINDS, AttrDef, item_kind

# Named groups of dtypes for the allowed lists, in the notation "{numeric}".
_FLOATS = ("bfloat16", "float16", "float32", "float64")
_COMPLEX = ("complex64", "complex128")
_INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_NARROW = (
    *("float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float4_e2m1fn", "int4", "uint4", "int2", "uint2"),
)
_QUANTIZED = ("qint8", "quint8", "qint16", "quint16", "qint32")
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "floats": _FLOATS,
    "complexes": _COMPLEX,
    "ints": _INTS,
    "reals": _FLOATS + _INTS,
    "quantized": _QUANTIZED,
    "narrow": _NARROW,
    "numbers": _FLOATS + _INTS + _COMPLEX,
    "numbertype": _FLOATS + _INTS + _COMPLEX + _QUANTIZED,
    "index": ("int32", "int64"),
}


class OpSignature(NamedTuple):
    """The inputs, outputs and attributes of an op."""

    inputs: tuple[ArgDef, ...]
    outputs: tuple[ArgDef, ...]
    attrs: Mapping[str, AttrDef]


def read_signature(inputs: str, outputs: str, attrs: Sequence[str]) -> OpSignature:
    """Parse the texts that `define_op` describes.

    Raises:
        InvalidArgumentError: a text cannot be parsed, or does not fit the others.
    """
    parsed = _parse_attrs(attrs)
    taken, given = (tuple(_parse_args(text, parsed)) for text in (inputs, outputs))
    # Builders pass inputs and attributes by keyword, so they share one set of names.
    _check_distinct([*parsed, *(arg.name for arg in taken)], "attributes and inputs")
    _check_distinct([arg.name for arg in given], "outputs")
    return OpSignature(taken, given, parsed)


def _check_distinct(names: Sequence[str], about: str) -> None:
    if len(set(names)) < len(names):
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        raise InvalidArgumentError(f"two of its {about} have one name", expected="different names", actual=twice[0])


def _parse_args(text: str, attrs: Mapping[str, AttrDef]) -> Iterator[ArgDef]:
    for part in text.split(","):
        if not part or part.isspace():
            continue
        name, kind = _named_kind(part)
        if kind.startswith("list:"):
            yield ArgDef(name, list_attr=_attr_of(kind[5:], "list(type)", attrs))
            continue
        # "N*T": the number first, then the element's type.
        number, _, element = kind.rpartition("*")
        number_attr = _attr_of(number, "int", attrs) if number else None
        if element in attrs:
            yield ArgDef(name, type_attr=_attr_of(element, "type", attrs), number_attr=number_attr)
        else:
            yield ArgDef(name, dtype=_dtype_of(element, attrs), number_attr=number_attr)


@cache  # hundreds of ops have an input "x: T"
def _named_kind(part: str) -> tuple[str, str]:
    name, colon, kind = (s.strip() for s in part.partition(":"))
    if not (colon and name.isidentifier() and kind):
        raise InvalidArgumentError(
            "an input or output cannot be read", expected='"name: kind"', actual=repr(part.strip())
        )
    return name, kind


def _attr_of(name: str, kind: str, attrs: Mapping[str, AttrDef]) -> str:
    """Return the name. Raise InvalidArgumentError unless it is an attribute of that kind."""
    if name not in attrs or attrs[name].kind != kind:
        raise InvalidArgumentError(
            f"{name!r} is not an attribute of kind {kind}",
            expected=f'"{name}: {kind}" among the attributes',
            actual=attrs[name].kind if name in attrs else sorted(attrs),
        )
    return name


def _dtype_of(name: str, attrs: Mapping[str, AttrDef]) -> DType:
    try:
        return as_dtype(name)
    except (DTypeError, TypeError) as error:
        # NumPy reads some letters as dtypes, and raises its own TypeError for others.
        raise DTypeError(
            f"{name!r} is neither a dtype nor an attribute",
            expected=f'a dtype such as "float32", or "{name}: type" among the attributes',
            actual=sorted(attrs),
        ) from error


def _parse_attrs(texts: Sequence[str]) -> dict[str, AttrDef]:
    if isinstance(texts, str):
        raise InvalidArgumentError("its attributes are one string", expected="a string for each", actual=repr(texts))
    parsed = [_parse_attr(text) for text in texts]
    _check_distinct([name for name, _ in parsed], "attributes")
    return dict(parsed)


_ATTR: Final = re.compile(
    r"(?P<name>\w+)\s*:\s*(?P<kind>\{[^}]*\}|list\(\w+\)|list\(\{[^}]*\}\)|\w+)\s*(?:>=\s*(?P<min>-?\d+))?\s*(?:=\s*(?P<default>.*))?$"
)


@cache  # hundreds of ops share a few dozen attributes
def _parse_attr(text: str) -> tuple[str, AttrDef]:
    match = _ATTR.match(text.strip())
    if match is None:
        raise InvalidArgumentError(
            "an attribute cannot be read",
            expected='"name: kind", "name: kind >= 1" or "name: kind = default"',
            actual=repr(text),
        )
    name, kind, minimum, default = match["name"], match["kind"], match["min"], match["default"]
    is_list = kind.startswith("list({")
    if is_list:
        kind = kind[5:-1]
    allowed: tuple[Any, ...] | None = None
    if kind.startswith("{"):
        kind, allowed = _parse_allowed(kind[1:-1])
    attr = AttrDef(
        name, f"list({kind})" if is_list else kind, None, False, allowed, None if minimum is None else int(minimum)
    )
    # Only now: "list({…})" and "{…}" have been replaced by their kinds.
    if item_kind(attr.kind) not in KINDS:
        raise InvalidArgumentError(
            f"attribute {name!r} is of no kind that there is",
            expected=f"one of {', '.join(KINDS)}, or a list(…) of one",
            actual=attr.kind,
        )
    if default is None:
        return name, attr
    # The default passes through the same check as a user's value, so it is in canonical form.
    value = attr.check(_parse_default(attr.kind, default.strip()))
    return name, AttrDef(name, attr.kind, value, True, allowed, attr.minimum)


def _parse_allowed(text: str) -> tuple[str, tuple[Any, ...]]:
    items = [i.strip() for i in text.split(",")]
    if items[0][:1] in "'\"":
        return "string", tuple(i[1:-1] for i in items)
    # A group may contain a dtype that is also listed singly, hence `fromkeys`.
    names = [n for i in items for n in GROUPS.get(i, (i,))]
    return "type", tuple(dict.fromkeys(as_dtype(n) for n in names))


_ARRAY: Final = re.compile(r"(?P<dtype>\w+)\((?P<items>\[[-+.\w, ]*\])\)")  # "uint8([1, 2])"


def _parse_default(kind: str, text: str) -> Any:
    if kind in ("type", "list(type)") and not text.startswith("["):
        return text
    array = _ARRAY.fullmatch(text) if kind == "tensor" else None
    if array is not None:
        made = np.array(ast.literal_eval(array["items"]), as_dtype(array["dtype"]).np_dtype)
        # All nodes share the default, since parsed attributes are cached.
        made.flags.writeable = False
        return made
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise InvalidArgumentError(
            "a default cannot be read", expected=f"a literal of kind {kind}", actual=text
        ) from error
