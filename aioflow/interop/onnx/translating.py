"""The registry of translations from ONNX: one function per op, found by domain, name and opset version.

@translation("Gemm")
    def gemm(node: OnnxNode, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        if node.attr("transA", 0):
            ...

A translation receives the inputs in order. Each is a tensor (a `Sequence` or an `Optional` where ONNX has these), or
None if it is omitted. The function returns a value for each output in order, in a tuple if there are several. onnx may
define an op without a translation as a function of other ops: see `schemas.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final, NoReturn, Protocol, TypeAlias, TypeVar

from onnx import AttributeProto, GraphProto, NodeProto

from aioflow.errors import AlreadyRegisteredError, InvalidArgumentError
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Tensor
from aioflow.graph.static_value import constant_value
from aioflow.interop.onnx.sequences import ValueKind
from aioflow.interop.onnx.tensors import array_of
from aioflow.interop.onnx.types import dtype_of
from aioflow.interop.unsupported import UnsupportedOp
from aioflow.loading.importing import gives_way, importing
from aioflow.memory.values import Array

# ── conversion of node attributes to Python values ────────────────────────────────────────────────────────────────────

_VALUES: Final[Mapping[int, Callable[[AttributeProto], Any]]] = {
    AttributeProto.FLOAT: lambda proto: proto.f,
    AttributeProto.INT: lambda proto: proto.i,
    AttributeProto.STRING: lambda proto: _text(proto.s),
    AttributeProto.TENSOR: lambda proto: array_of(proto.t),
    AttributeProto.GRAPH: lambda proto: proto.g,
    AttributeProto.SPARSE_TENSOR: lambda proto: proto.sparse_tensor,
    AttributeProto.TYPE_PROTO: lambda proto: proto.tp,
    AttributeProto.FLOATS: lambda proto: list(proto.floats),
    AttributeProto.INTS: lambda proto: list(proto.ints),
    AttributeProto.STRINGS: lambda proto: [_text(each) for each in proto.strings],
    AttributeProto.TENSORS: lambda proto: [array_of(each) for each in proto.tensors],
    AttributeProto.GRAPHS: lambda proto: list(proto.graphs),
    AttributeProto.TYPE_PROTOS: lambda proto: list(proto.type_protos),
}


def attribute_value(proto: AttributeProto) -> Any:
    """Return an int, float, str or array, a list of these, or the proto of a graph, a type or a sparse tensor.

    Raises:
        InvalidArgumentError: the attribute has no known type, or its text is not UTF-8.
    """
    read = _VALUES.get(proto.type)
    if read is None:
        raise InvalidArgumentError(
            f"attribute {proto.name!r} has no known type", expected="a type of AttributeProto", actual=proto.type
        )
    return read(proto)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError("a text is not UTF-8", expected="UTF-8", actual=data[:40]) from error


# ── nodes and translations ────────────────────────────────────────────────────────────────────────────────────────────


OnnxValue: TypeAlias = Any  # a Tensor, a Sequence, an Optional, or None if omitted: see `sequences.py`
Translation: TypeAlias = Callable[..., Any]
_Function = TypeVar("_Function", bound=Translation)

# By (domain, op): the first opset version of each translation, in order, and the translations.
_TRANSLATIONS: Final[dict[tuple[str, str], tuple[list[int], list[Translation]]]] = {}
# By (domain, op): all attributes that the translation handles, for ops without a schema in onnx.
_ATTRIBUTES: Final[dict[tuple[str, str], frozenset[str]]] = {}


class Refused(Exception):
    """Raised by a translation that does not support a node."""

    def __init__(self, op: UnsupportedOp) -> None:
        super().__init__(op.why)
        self.op = op


class Subgraph(Protocol):
    """A graph that is an attribute: the branch of an If, the body of a Loop."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    declared: tuple[ValueKind | None, ...]  # types of its outputs in the file

    def __call__(self, *inputs: OnnxValue) -> list[OnnxValue]:
        """Add its nodes to the current graph and return its outputs."""

    def kinds(self, *inputs: ValueKind) -> list[ValueKind]:
        """Return the kinds of its outputs for inputs of these kinds, without adding nodes."""


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """A node of the model during translation.

    Attributes:
        proto: The node in the file.
        name: Its name, or that of its first output.
        version: Opset version of its domain that the model declares.
        attributes: Its attributes by name; references to attributes of the enclosing function are resolved.
        subgraph: Function that makes a graph attribute callable.
        known: Function that returns the value of a tensor, if it is known while the graph is built.
        named: Function that returns the value of a visible name, for the few ops with names among their attributes.
        weight: Function that returns the tensor for a weight of this name and value: a variable if it is trained.
            None inside subgraphs and functions, which may run often or never.
    """

    proto: NodeProto
    name: str
    version: int
    attributes: Mapping[str, AttributeProto] = field(default_factory=dict)
    subgraph: Callable[[GraphProto], Subgraph] | None = None
    named: Callable[[str], OnnxValue] | None = None
    known: Callable[[Tensor], Array | None] = constant_value
    weight: Callable[[str, Array], Tensor] | None = None

    @property
    def op(self) -> str:
        """Name of the op, with its domain unless that is ONNX's own: "Gemm", "ai.onnx.ml:Binarizer"."""
        return f"{self.proto.domain}:{self.proto.op_type}" if self.proto.domain else str(self.proto.op_type)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, "" for an unused one."""
        return tuple(self.proto.output)

    def wants(self, index: int) -> bool:
        """Return whether the output at `index` may be read."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute: an int, float, str, array, list of these, or the proto of any other type.

        Raises:
            InvalidArgumentError: the attribute is not of the type of `default`, if that is given.
        """
        proto = self.attributes.get(name)
        if proto is None:
            return default
        value = attribute_value(proto)
        # The schema checks types, too, but ops of other domains have no schema.
        if default is not None and not isinstance(value, type(default)):
            raise self.wrong(f"attribute {name!r}", type(default).__name__, type(value).__name__)
        return value

    def required(self, name: str) -> Any:
        """Return an attribute. Raise InvalidArgumentError if it is missing."""
        value = self.attr(name)
        if value is None:
            raise self.wrong("the attributes", f"an attribute {name!r}", sorted(self.attributes))
        return value

    def dtype(self, name: str, default: DType | None = None) -> DType:
        """Return an attribute that is an element type. Refuse the node if aioflow does not have the type."""
        number = self.attr(name) if default is not None else self.required(name)
        if default is not None and number is None:
            return default
        found = dtype_of(number)
        return self.refuse(f"{name} of element type {number}") if found is None else found

    def body(self, name: str) -> Subgraph:
        """Return a graph attribute as a callable."""
        graph = self.required(name)
        if not isinstance(graph, GraphProto) or self.subgraph is None:
            raise self.wrong(f"attribute {name!r}", "a graph", type(graph).__name__)
        return self.subgraph(graph)

    def constant(self, tensor: Tensor | None) -> Array | None:
        """Return the tensor's value if it is known while the graph is built, or None. Do not modify it."""
        return None if tensor is None else self.known(tensor)

    def refuse(self, why: str) -> NoReturn:
        """Raise Refused: the node cannot be imported, for a reason such as "mode='cubic' of rank 5"."""
        raise Refused(UnsupportedOp(self.op, self.name, why))

    def wrong(self, what: str, expected: object, actual: object) -> InvalidArgumentError:
        """Return the error for a node that violates the ONNX standard."""
        return InvalidArgumentError(
            f"{what} of the node cannot be right",
            node=self.name,
            op_type=self.op,
            expected=str(expected),
            actual=str(actual),
        )


def translation(
    op: str, *, since: int = 1, domain: str = "", attributes: Collection[str] | None = None
) -> Callable[[_Function], _Function]:
    """Register the translation of an op for opset version `since` and later, up to the next registered version.

    Args:
        op: Name of the op.
        since: First opset version that the translation applies to.
        domain: Domain of the op.
        attributes: All attributes that the translation handles; a node with another one is refused. None for ops with
            a schema in onnx.

    Raises:
        AlreadyRegisteredError: the op has a translation for that version.
    """

    module = importing()
    if attributes is not None:
        _ATTRIBUTES[domain, op] = frozenset(attributes)

    def register(function: _Function) -> _Function:
        versions, functions = _TRANSLATIONS.setdefault((domain, op), ([], []))
        # An import that was aborted leaves its registrations behind; the next one replaces them.
        if since in versions and gives_way(functions[versions.index(since)].__globals__, module):
            functions[versions.index(since)] = function
            return function
        if since in versions:
            raise AlreadyRegisteredError(f"{op} of opset {since} has a translation", actual=function.__qualname__)
        # Sorted on insertion, so that `find_translation` can bisect.
        at = bisect_right(versions, since)
        versions.insert(at, since)
        functions.insert(at, function)
        return function

    return register


def find_translation(domain: str, op: str, version: int) -> Translation | None:
    """Return the translation of an op in a model of that opset version, or None."""
    load_translations()
    versions, functions = _TRANSLATIONS.get((domain, op), ([], []))
    at = bisect_right(versions, version)
    # The last translation whose first version is not later than the model's.
    return functions[at - 1] if at else None


def check_attributes(node: OnnxNode, domain: str) -> None:
    """Refuse a node with an attribute outside the list of those its translation handles, if there is such a list."""
    handled = _ATTRIBUTES.get((domain, str(node.proto.op_type)))
    for name in sorted(node.attributes):
        if handled is not None and name not in handled:
            node.refuse(f"attribute {name!r}")


def load_translations() -> None:
    """Import every module of `translations`."""
    if _LOADED:
        return
    package = import_module("aioflow.interop.onnx.translations")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    _LOADED.append(True)


_LOADED: Final[list[bool]] = []


# ── the domain com.microsoft: ops that onnxruntime's optimizer and quantizer produce ──────────────────────────────────
#
# onnx has no schemas for them, so each translation lists the attributes that it handles and supplies their default
# values. A node with another attribute is refused.


DOMAIN: Final = "com.microsoft"


def microsoft(op: str, *attributes: str) -> Callable[[_Function], _Function]:
    """Register the translation of an op of the domain, which handles these attributes."""
    return translation(op, domain=DOMAIN, attributes=attributes)


def refuse_unless(node: OnnxNode, **only: object) -> None:
    """Refuse a node if an attribute is set to another value than the only supported one."""
    for name, value in only.items():
        found = node.attr(name, value)
        if found != value:
            node.refuse(f"{name}={found}")


def refuse_inputs(node: OnnxNode, **inputs: Tensor | None) -> None:
    """Refuse a node that has one of these inputs."""
    for name, given in inputs.items():
        if given is not None:
            node.refuse(f"input {name!r}")
