"""The import of a model's nodes into a graph, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TypeProto

from aioflow.errors import DTypeError, InvalidArgumentError, OpError, ResourceExhaustedError, UnimplementedError
from aioflow.graph.graph import Graph, Tensor
from aioflow.graph.labelled import LabelledTensor
from aioflow.interop.onnx.engine_nodes import node_by_engine
from aioflow.interop.onnx.implied_ranks import implied_ranks
from aioflow.interop.onnx.names import check_text, node_name
from aioflow.interop.onnx.schemas import NEWEST, check_node, default_attributes, function_body, has_function
from aioflow.interop.onnx.sequences import Listed, ValueKind, kind_of, kind_of_type, placed, standing_for, type_of
from aioflow.interop.onnx.tensors import WeightFiles, array_of
from aioflow.interop.onnx.translating import (
    OnnxNode,
    OnnxValue,
    Refused,
    Translation,
    check_attributes,
    find_translation,
)
from aioflow.interop.onnx.types import dims_of_type
from aioflow.interop.onnx.weights import ModelWeights
from aioflow.interop.unsupported import UnsupportedOp
from aioflow.ops.apply import constant
from aioflow.ops.array.shape import ensure_shape

_DEEPEST: Final = 24  # deepest nesting of subgraphs and functions
_TRIALS: Final = 6  # deepest nesting of loops; each doubles the work of the loops within it
# Limit on the nodes of functions, branches and bodies, counted each time they are expanded: about a minute and 1 GiB.
# If each function calls the next one twice, a file of a few lines expands exponentially.
_MOST_INSIDE: Final = 300_000


class _Missing:
    """The placeholder for the value of a node that cannot be imported."""


class _Known(Exception):
    """Raised for a node that cannot be imported because of other nodes, which are already listed."""


_MISSING: Final = _Missing()
_Attributes = Mapping[str, AttributeProto]


@dataclass(frozen=True)
class VisibleNames:
    """The names that are visible in a graph or a function.

    Attributes:
        opsets: Opset version of each domain.
        outer: Scope around a subgraph, whose names are visible too.
        attributes: Attributes of the call, in a function.
        depth: Number of scopes around it.
        values: Values by name.
    """

    opsets: Mapping[str, int]
    outer: VisibleNames | None = None
    attributes: _Attributes = field(default_factory=dict)
    depth: int = 0
    values: dict[str, OnnxValue] = field(default_factory=dict)

    def inner(self, opsets: Mapping[str, int] | None = None, attributes: _Attributes | None = None) -> VisibleNames:
        """Return the scope of a subgraph. With `opsets`, it is that of a function, from which no outer name is visible.

        Raises:
            InvalidArgumentError: scopes are nested too deeply, as when a function calls itself.
        """
        if self.depth >= _DEEPEST:
            raise InvalidArgumentError(
                "subgraphs or functions are nested too deeply", expected=f"at most {_DEEPEST}", actual="more"
            )
        if opsets is None:
            return VisibleNames(self.opsets, self, self.attributes, self.depth + 1)
        return VisibleNames(opsets, None, attributes or {}, self.depth + 1)

    def find(self, name: str) -> OnnxValue:
        """Return the value of that name. Raise InvalidArgumentError if no earlier node defines it."""
        if name in self.values:
            return self.values[name]
        if self.outer is not None:
            return self.outer.find(name)
        raise InvalidArgumentError(
            "a value is read that nothing before has made",
            expected="nodes in order, without a cycle",
            actual=repr(name),
        )

    def define(self, name: str, value: OnnxValue) -> None:
        """Define the value of a name. Raise InvalidArgumentError if it already has one."""
        if name in self.values:
            raise InvalidArgumentError("two values have one name", expected="each name once", actual=repr(name))
        self.values[name] = value


@dataclass(frozen=True)
class _Abroad(VisibleNames):
    """The names of a scope for a trial import into another graph, with stand-ins for their values.

    Attributes:
        graph: Graph of the trial. Stand-ins are added to it even if the first lookup comes from a trial within the
            trial, which has its own graph, or from a branch.
        weights: Weights of the import, which contain the values known to be constant.
    """

    graph: Graph = field(default_factory=Graph)
    weights: ModelWeights = field(default_factory=ModelWeights)

    def find(self, name: str) -> OnnxValue:
        """Return a constant or a placeholder like the value. Raise the same errors as the scope itself."""
        if name not in self.values and self.outer is not None:
            self.values[name] = self._likeness(self.outer.find(name))
        return self.values[name]

    def _likeness(self, value: OnnxValue) -> OnnxValue:
        if value is None or value is _MISSING:
            return value
        if isinstance(value, Listed) and value.items is not None:
            return type(value)(value.element, items=[self._likeness(item) for item in value.items])
        known = self.weights.constant(value) if isinstance(value, Tensor) else None
        with self.graph.as_default(), self.graph.control_dependencies(None):
            return placed(kind_of(value), standing_for(kind_of(value))) if known is None else constant(known)


class ModelImport:
    """One import.

    Attributes:
        graph: Graph that nodes are added to.
        weights: Weights of the model.
        unsupported: Parts of the model found so far that cannot be imported.
        opsets: Opset version of each domain.
    """

    def __init__(self, model: ModelProto, graph: Graph, files: WeightFiles, weights: ModelWeights) -> None:
        self.graph = graph
        self.weights = weights
        self._files = files
        self.unsupported: dict[UnsupportedOp, None] = {}
        self.opsets = opsets_of(model.opset_import)
        self._model = model
        self._functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self._trials = 0
        self._inside = count(1)

    def trial(self) -> ModelImport:
        """Return a walk into a new graph, which shows the types of results without adding nodes to this graph.

        Raises:
            InvalidArgumentError: trials are nested too deeply.
        """
        if self._trials >= _TRIALS:
            raise InvalidArgumentError("loops are nested too deeply", expected=f"at most {_TRIALS}", actual="more")
        # Weights of its own: a trial must not create variables of the model.
        walk = ModelImport(self._model, Graph(), self._files, ModelWeights())
        walk._trials = self._trials + 1
        # Shared, so that nested trials cannot multiply the limit.
        walk._inside = self._inside
        return walk

    def run_nodes(self, nodes: Iterable[NodeProto], scope: VisibleNames) -> None:
        """Import the nodes."""
        for proto in nodes:
            self._run(proto, scope)

    def subgraph(self, graph: GraphProto, outer: VisibleNames) -> _Subgraph:
        """Return a graph among the attributes of a node as a callable."""
        return _Subgraph(self, graph, outer)

    def initializers(self, graph: GraphProto, scope: VisibleNames, weights: ModelWeights) -> None:
        """Define the names of a graph's weights."""
        for sparse in graph.sparse_initializer:
            self.unsupported[UnsupportedOp("a sparse initializer", sparse.values.name, "weights are dense here")] = None
            scope.define(sparse.values.name, _MISSING)
        for proto in graph.initializer:
            scope.define(proto.name, weights.tensor(proto.name, array_of(proto, self._files)))

    def _run(self, proto: NodeProto, scope: VisibleNames) -> None:
        check_text(proto.name, proto.domain, proto.op_type, *proto.input, *proto.output)
        # Nodes of the main graph are bounded by the size of the file.
        if scope.depth and next(self._inside) > _MOST_INSIDE:
            raise ResourceExhaustedError(
                "the functions and loops of the model make it too large",
                expected=f"at most {_MOST_INSIDE} nodes inside of them",
                actual="more",
            )
        name = _shown_name(proto)
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        version = scope.opsets.get(domain, 0)
        attributes = _bound_attributes(proto, scope)
        with _errors_of(proto):
            inputs = [scope.find(each) if each else None for each in proto.input]
        node = OnnxNode(
            proto,
            name,
            version,
            attributes,
            lambda graph: self.subgraph(graph, scope),
            scope.find,
            self.weights.constant,
            None if scope.depth else self.weights.of_node,
        )
        try:
            with _errors_of(proto):
                check_node(proto, domain, version, attributes)
                outputs = self._outputs(node, domain, inputs, scope)
        except Refused as refused:
            self.unsupported[refused.op] = None
            self._list_inside(proto, scope)
            outputs = None
        except _Known:
            self._list_inside(proto, scope)
            outputs = None
        with _errors_of(proto):
            self._define(proto, outputs, scope)

    def _define(self, proto: NodeProto, outputs: Sequence[OnnxValue] | None, scope: VisibleNames) -> None:
        for i, name in enumerate(proto.output):
            # An empty name stands for an output that the file does not use.
            if name:
                scope.define(name, _MISSING if outputs is None or i >= len(outputs) else outputs[i])

    def _outputs(
        self, node: OnnxNode, domain: str, inputs: list[OnnxValue], scope: VisibleNames
    ) -> Sequence[OnnxValue]:
        proto = node.proto
        local = self._functions.get((proto.domain, proto.op_type, proto.overload))
        # A function of the model takes precedence over the op of the same name.
        translate = None if local else find_translation(domain, proto.op_type, node.version)
        is_function = bool(local) or has_function(domain, proto.op_type, node.version)
        is_missing = any(each is _MISSING for each in inputs)
        if not is_function and not translate and (domain in NEWEST or is_missing):
            node.refuse("no such op")  # without the types of its inputs an engine cannot be asked
        if is_missing:
            raise _Known
        if any(isinstance(each, LabelledTensor) for each in inputs):
            node.refuse("an input that is a list of dictionaries")
        with self.graph.name_scope(node_name(node.name, proto.op_type)) as prefix:
            # Nodes made from here on belong to this node of the model.
            first = self.graph.version
            with _mapped_errors(node, inputs):
                if translate:
                    outputs = self._translated(translate, node, domain, inputs, scope)
                elif is_function:
                    outputs = self._called(local or _body(node, domain, inputs), node, inputs, scope)
                else:
                    outputs = self._by_engine(node, domain, inputs, scope)
        self._name(outputs, first, prefix)
        return outputs

    def _translated(
        self, translate: Translation, node: OnnxNode, domain: str, inputs: list[OnnxValue], scope: VisibleNames
    ) -> Sequence[OnnxValue]:
        try:
            check_attributes(node, domain)
            found = translate(node, *_ranked(node, domain, inputs, scope))
            outputs = list(found) if isinstance(found, tuple) else [found]
            _check_outputs(node, outputs)
        except Refused:
            if domain in NEWEST:
                raise
            with suppress(Refused):
                return self._by_engine(node, domain, inputs, scope)
            raise  # the translation's reason is the more specific one
        return outputs

    def _by_engine(
        self, node: OnnxNode, domain: str, inputs: list[OnnxValue], scope: VisibleNames
    ) -> Sequence[OnnxValue]:
        outputs = node_by_engine(node, domain, scope.opsets, inputs)
        # The model's `value_info` describes only the names of the main graph.
        if scope.depth:
            return outputs
        graph = self._model.graph
        told = {each.name: dims_of_type(each.type.tensor_type) for each in (*graph.value_info, *graph.output)}
        return [
            value if value is None or told.get(name) is None else ensure_shape(value, told[name])
            for name, value in zip(node.outputs, outputs, strict=True)
        ]

    def _name(self, outputs: Sequence[OnnxValue], first: int, prefix: str) -> None:
        """Name the new node that computes the outputs after the model's node."""
        for value in outputs:
            if isinstance(value, Tensor | LabelledTensor) and value.op.id >= first:
                self.graph.take_scope_name(value.op, prefix)

    def _called(
        self, function: FunctionProto, node: OnnxNode, inputs: list[OnnxValue], scope: VisibleNames
    ) -> list[OnnxValue]:
        attributes = {each.name: each for each in function.attribute_proto}
        # A function states its own versions; the others are those of the model.
        opsets = NEWEST | self.opsets | opsets_of(function.opset_import)
        inner = scope.inner(opsets, attributes | dict(node.attributes))
        if len(inputs) > len(function.input):
            raise node.wrong("the inputs", f"at most {len(function.input)}", len(inputs))
        for i, name in enumerate(function.input):
            # Trailing inputs may be omitted in a call.
            inner.define(name, inputs[i] if i < len(inputs) else None)
        self.run_nodes(function.node, inner)
        return [inner.find(name) for name in function.output]

    def _list_inside(self, proto: NodeProto, scope: VisibleNames) -> None:
        """List the unsupported nodes in subgraphs of a node that cannot be imported, as far as their ops show it."""
        for attribute in proto.attribute:
            graphs = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
            for graph in graphs:
                for inside in graph.node:
                    self._list_node(inside, scope)

    def _list_node(self, proto: NodeProto, scope: VisibleNames) -> None:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        key, version = (proto.domain, proto.op_type, proto.overload), scope.opsets.get(domain, 0)
        known = key in self._functions or find_translation(domain, proto.op_type, version)
        if not known and not has_function(domain, proto.op_type, version):
            op = f"{proto.domain}:{proto.op_type}" if proto.domain else proto.op_type
            self.unsupported[UnsupportedOp(op, proto.name or "".join(proto.output[:1]))] = None
        self._list_inside(proto, scope.inner())


class _Subgraph:
    """A callable subgraph. See `translating.Subgraph`."""

    def __init__(self, walk: ModelImport, graph: GraphProto, outer: VisibleNames) -> None:
        self.inputs = tuple(each.name for each in graph.input)
        self.outputs = tuple(each.name for each in graph.output)
        self.declared = tuple(kind_of_type(each.type) for each in graph.output)
        self._walk, self._graph, self._outer = walk, graph, outer

    def __call__(self, *inputs: OnnxValue) -> list[OnnxValue]:
        scope = self._outer.inner()
        for name, value in zip(self.inputs, inputs, strict=True):
            scope.define(name, value)
        # Constants in any case: a body may run often or never, so its weights are not trained.
        self._walk.initializers(self._graph, scope, ModelWeights())
        self._walk.run_nodes(self._graph.node, scope)
        found = [scope.find(name) for name in self.outputs]
        if any(value is _MISSING for value in found):
            raise _Known
        return found

    def kinds(self, *inputs: ValueKind) -> list[ValueKind]:
        trial = self._walk.trial()
        with trial.graph.as_default():
            outer = self._outer
            abroad = _Abroad(
                outer.opsets, outer, outer.attributes, outer.depth, graph=trial.graph, weights=self._walk.weights
            )
            try:
                made = _Subgraph(trial, self._graph, abroad)(*(placed(kind, standing_for(kind)) for kind in inputs))
            finally:
                # Also if the trial fails, so that the error lists these nodes.
                self._walk.unsupported.update(trial.unsupported)
        return [kind_of(value) for value in made]


def opsets_of(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    """Return the opset version of each domain."""
    return {"" if each.domain == "ai.onnx" else each.domain: each.version for each in imports}


def _bound_attributes(proto: NodeProto, scope: VisibleNames) -> _Attributes:
    """Return the node's attributes, with references to attributes of the function resolved.

    References to an attribute that the call does not have are left out.
    """
    found: dict[str, AttributeProto] = {}
    for each in proto.attribute:
        if not each.ref_attr_name:
            found[each.name] = each
        elif each.ref_attr_name in scope.attributes:
            found[each.name] = scope.attributes[each.ref_attr_name]
    return found


def _ranked(node: OnnxNode, domain: str, inputs: list[OnnxValue], scope: VisibleNames) -> list[OnnxValue]:
    """Return the inputs with the ranks that the op fixes."""
    found = list(inputs)
    # A branch may not run, so there the rank holds only inside: set_shape would apply outside as well.
    for i, rank in implied_ranks(node, domain, inputs).items():
        if scope.depth:
            found[i] = ensure_shape(inputs[i], [None] * rank)
        else:
            inputs[i].set_shape([None] * rank)
    return found


def _check_outputs(node: OnnxNode, outputs: Sequence[OnnxValue]) -> None:
    for i, name in enumerate(node.outputs):
        if name and i >= len(outputs):
            node.refuse(f"no output {name!r}")
        if name and outputs[i] is None:
            raise node.wrong("the inputs", "all that the outputs follow from", "one is left out")


def _shown_name(proto: NodeProto) -> str:
    """Return the node's name, or else the name of its first output or op."""
    return proto.name or next((each for each in proto.output if each), str(proto.op_type))


@contextmanager
def _errors_of(proto: NodeProto) -> Iterator[None]:
    """Set the model's node on errors that name no node."""
    try:
        yield
    except OpError as error:
        if error.node is None:
            op = f"{proto.domain}:{proto.op_type}" if proto.domain else proto.op_type
            error.node, error.op_type = _shown_name(proto), op
        raise


@contextmanager
def _mapped_errors(node: OnnxNode, inputs: Sequence[OnnxValue]) -> Iterator[None]:
    """Convert errors of aioflow or Python during the import of a node into errors about the node."""
    try:
        yield
    except (DTypeError, UnimplementedError) as error:
        why = " ".join(line.strip() for line in error.message.splitlines())
        raise Refused(UnsupportedOp(node.op, node.name, why)) from error
    except (Refused, OpError):
        raise
    except MemoryError as error:
        raise ResourceExhaustedError("the node takes more memory than there is") from error
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RuntimeError) as error:
        if any(isinstance(each, Tensor) and each.dims is None for each in inputs):
            raise Refused(UnsupportedOp(node.op, node.name, "a tensor of unknown rank")) from error
        # A translation's and onnx's inputs come from the model, so an unexpected error means that the model is invalid.
        raise InvalidArgumentError(f"the node cannot be imported: {error}") from error


def _body(node: OnnxNode, domain: str, inputs: Sequence[OnnxValue]) -> FunctionProto:
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    proto.domain = domain
    del proto.attribute[:]
    proto.attribute.extend({**default_attributes(domain, proto.op_type, node.version), **_named(node)}.values())
    types = [TypeProto() if value is None else type_of(kind_of(value)) for value in inputs]
    body = function_body(proto, node.version, types)
    return node.refuse("no such op") if body is None else body


def _named(node: OnnxNode) -> dict[str, AttributeProto]:
    found = {}
    for name, each in node.attributes.items():
        found[name] = AttributeProto()
        found[name].CopyFrom(each)
        found[name].name = name
        found[name].ref_attr_name = ""
    return found
