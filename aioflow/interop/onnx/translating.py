"""How an op of ONNX becomes ops of the library: one function each, found by domain, name and opset version.

    @translation("Gemm")
    def gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        if node.attr("transA", 0):
            ...

The inputs come in order: a tensor each (a `Sequence` or an `Optional` where ONNX has these), None for one that is left
out. It gives a value for each output in order, in a tuple if there are several. What an op without a translation is,
onnx may say by a function of other ops: see `schemas.py`.
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
from aioflow.graph.arrays import Array
from aioflow.graph.dtypes import DType
from aioflow.graph.static_value import constant_value
from aioflow.graph.tensor import Tensor
from aioflow.interop.onnx.attributes import attribute_value
from aioflow.interop.onnx.sequences import Kind
from aioflow.interop.onnx.types import dtype_of
from aioflow.interop.unsupported import UnsupportedOp
from aioflow.work.importing import gives_way, importing

__all__ = [
    "Node",
    "Refused",
    "Subgraph",
    "Translation",
    "Value",
    "check_attributes",
    "find_translation",
    "load_translations",
    "translation",
]

Value: TypeAlias = Any  # a Tensor, a Sequence, an Optional, or None for what is left out: see `sequences.py`
Translation: TypeAlias = Callable[..., Any]
_Function = TypeVar("_Function", bound=Translation)

# By (domain, op): the opset versions from which on a translation holds, in order, and the translations.
_TRANSLATIONS: Final[dict[tuple[str, str], tuple[list[int], list[Translation]]]] = {}
# By (domain, op): all attributes that the translation handles, for ops of which onnx has no schema.
_ATTRIBUTES: Final[dict[tuple[str, str], frozenset[str]]] = {}


class Refused(Exception):
    """A translation cannot do what a node asks for."""

    def __init__(self, op: UnsupportedOp) -> None:
        super().__init__(op.why)
        self.op = op


class Subgraph(Protocol):
    """A graph that is an attribute: the branch of an If, the body of a Loop."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    declared: tuple[Kind | None, ...]  # what the file says of its outputs

    def __call__(self, *inputs: Value) -> list[Value]:
        """Add its nodes where nodes are added now, and give its outputs."""

    def kinds(self, *inputs: Kind) -> list[Kind]:
        """What is known of its outputs for such inputs, without any node being added."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the model, as its translation sees it.

    Attributes:
        proto: The node as the file has it.
        name: Its name, or that of its first output.
        version: The version of its domain's opset that the model was written for.
        attributes: Its attributes by name; within a function those that its caller has given.
        subgraph: Makes something to call of a graph among the attributes.
        known: The value of a tensor, where it is known while the graph is built.
        named: The value of a name that the node can see, for the few that have names among the attributes.
        weight: Makes what stands for a weight, of its name in the model and its value: a variable if it is trained.
            None inside of subgraphs and functions, which may run often or never.
    """

    proto: NodeProto
    name: str
    version: int
    attributes: Mapping[str, AttributeProto] = field(default_factory=dict)
    subgraph: Callable[[GraphProto], Subgraph] | None = None
    named: Callable[[str], Value] | None = None
    known: Callable[[Tensor], Array | None] = constant_value
    weight: Callable[[str, Array], Tensor] | None = None

    @property
    def op(self) -> str:
        """The op's name, with its domain unless that is ONNX's own: "Gemm", "ai.onnx.ml:Binarizer"."""
        return f"{self.proto.domain}:{self.proto.op_type}" if self.proto.domain else str(self.proto.op_type)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its outputs, "" for one that is not wanted."""
        return tuple(self.proto.output)

    def wants(self, index: int) -> bool:
        """Whether something may read that output."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute: an int, float, str, array, list of these, or the proto of anything else.

        Raises:
            InvalidArgumentError: it is not of the kind of `default`, if that is given.
        """
        proto = self.attributes.get(name)
        if proto is None:
            return default
        value = attribute_value(proto)
        if default is not None and not isinstance(value, type(default)):
            raise self.wrong(f"attribute {name!r}", type(default).__name__, type(value).__name__)
        return value

    def required(self, name: str) -> Any:
        """An attribute that must be there. Raises InvalidArgumentError if it is not."""
        value = self.attr(name)
        if value is None:
            raise self.wrong("the attributes", f"an attribute {name!r}", sorted(self.attributes))
        return value

    def dtype(self, name: str, default: DType | None = None) -> DType:
        """An attribute that is an element type. Refuses one that aioflow does not have."""
        number = self.attr(name) if default is not None else self.required(name)
        if default is not None and number is None:
            return default
        found = dtype_of(number)
        return self.refuse(f"{name} of element type {number}") if found is None else found

    def body(self, name: str) -> Subgraph:
        """An attribute that is a graph, to be called."""
        graph = self.required(name)
        if not isinstance(graph, GraphProto) or self.subgraph is None:
            raise self.wrong(f"attribute {name!r}", "a graph", type(graph).__name__)
        return self.subgraph(graph)

    def constant(self, tensor: Tensor | None) -> Array | None:
        """The tensor's value, if it is known while the graph is built; otherwise None. Do not modify it."""
        return None if tensor is None else self.known(tensor)

    def refuse(self, why: str) -> NoReturn:
        """Say that the node cannot be imported, and why: "mode='cubic' of rank 5"."""
        raise Refused(UnsupportedOp(self.op, self.name, why))

    def wrong(self, what: str, expected: Any, actual: Any) -> InvalidArgumentError:
        """The error about a node that is not as ONNX says."""
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
    """Register the translation of an op, for models of opset version `since` and later, up to the next one.

    Args:
        attributes: All attributes that the translation handles; a node with another one is refused. None for ops whose
            attributes onnx knows.

    Raises:
        AlreadyRegisteredError: there is one for that version.
    """

    module = importing()
    if attributes is not None:
        _ATTRIBUTES[domain, op] = frozenset(attributes)

    def register(function: _Function) -> _Function:
        versions, functions = _TRANSLATIONS.setdefault((domain, op), ([], []))
        if since in versions and gives_way(functions[versions.index(since)].__globals__, module):
            functions[versions.index(since)] = function
            return function
        if since in versions:
            raise AlreadyRegisteredError(f"{op} of opset {since} has a translation", actual=function.__qualname__)
        at = bisect_right(versions, since)
        versions.insert(at, since)
        functions.insert(at, function)
        return function

    return register


def find_translation(domain: str, op: str, version: int) -> Translation | None:
    """The translation of an op in a model of that opset version, or None."""
    load_translations()
    versions, functions = _TRANSLATIONS.get((domain, op), ([], []))
    at = bisect_right(versions, version)
    return functions[at - 1] if at else None


def check_attributes(node: Node, domain: str) -> None:
    """Refuse a node that has an attribute which its translation does not handle, where that lists those it does."""
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
