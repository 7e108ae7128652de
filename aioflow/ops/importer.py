"""The import of graph definitions (`import_graph_def`): their nodes become nodes of the default graph.

A definition may come from any source, so its contents are not trusted. Each node is checked against the signature of
its op, its dtypes are compared with those of its inputs, and its shapes are inferred again. Either all nodes are added
or none of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Final, overload

from aioflow.arguments import check_kind
from aioflow.errors import AlreadyExistsError, DTypeError, InvalidArgumentError, OpError
from aioflow.formats.graphs.older.references import modernized
from aioflow.graph.calls import EXPANDERS
from aioflow.graph.default_graph import default_graph
from aioflow.graph.definitions import AttrValue
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.graphdef import VERSION, FunctionDef, FunctionRef, GraphDef, InputRef, NodeDef, TensorData
from aioflow.graph.opdef import OPS, OpDef
from aioflow.graph.scopes import enter_scope
from aioflow.graph.shapes import Dims, dims_of, merge_dims
from aioflow.graph.signature.arguments import per_argument
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.source_lines import user_line
from aioflow.graph.tensor_like import TensorLike
from aioflow.ops.apply import convert_to_tensor, infer_attrs, output_specs
from aioflow.ops.function.body import StoredFunction
from aioflow.protos import is_message

__all__ = ["import_graph_def"]

_SHAPES: Final = "_output_shapes"


@overload
def import_graph_def(
    graph_def: GraphDef,
    input_map: Mapping[str, TensorLike | Operation] | None = None,
    return_elements: None = None,
    name: str | None = None,
    op_dict: object = None,
    producer_op_list: Iterable[OpDef] | None = None,
) -> None: ...


@overload
def import_graph_def(
    graph_def: GraphDef,
    input_map: Mapping[str, TensorLike | Operation] | None,
    return_elements: Sequence[str],
    name: str | None = None,
    op_dict: object = None,
    producer_op_list: Iterable[OpDef] | None = None,
) -> list[Any]: ...


@overload
def import_graph_def(
    graph_def: GraphDef,
    input_map: Mapping[str, TensorLike | Operation] | None = None,
    *,
    return_elements: Sequence[str],
    name: str | None = None,
    op_dict: object = None,
    producer_op_list: Iterable[OpDef] | None = None,
) -> list[Any]: ...


def import_graph_def(
    graph_def: GraphDef,
    input_map: Mapping[str, TensorLike | Operation] | None = None,
    return_elements: Sequence[str] | None = None,
    name: str | None = None,
    op_dict: object = None,
    producer_op_list: Iterable[OpDef] | None = None,
) -> list[Any] | None:
    """Add the nodes of a graph definition to the default graph.

    Devices, control inputs and colocation of the nodes are kept. Open device scopes complete a node's device, and open
    control dependencies are added. A node name that the graph has already is an error. (TensorFlow renames the new node
    instead, and the name then refers to the wrong one.)

    Args:
        graph_def: The definition, or a message of TensorFlow's.
        input_map: Replacements for outputs of the definition, by name: "node:1", "node" for "node:0", and "^node" (with
            a node or a tensor as value) for control inputs. The node itself is imported all the same.
        return_elements: Names of nodes ("node") and tensors ("node:0") of the definition to return.
        name: Name scope of the new nodes; "import" if not given. "" imports at the root.
        op_dict: Not used, as in TensorFlow.
        producer_op_list: Definitions of the ops in the producer's release: an attribute that is not known here is
            dropped if it has the producer's default.

    Returns:
        The requested elements, in order; None without `return_elements`.

    Raises:
        NotFoundError: an op is not registered.
        DTypeError: `graph_def` is not a definition, or a name is not a str.
        AlreadyExistsError: the graph has a node of the same name, or a different function of the same name.
        InvalidArgumentError: the definition is inconsistent (a name twice, an unknown input, a cycle, an attribute or a
            dtype that does not fit its op), or it does not have an element of `input_map` or `return_elements`.
    """
    if is_message(graph_def, "GraphDef"):
        graph_def = GraphDef.from_message(graph_def)
    if not isinstance(graph_def, GraphDef):
        raise DTypeError(
            "not a graph definition",
            expected="a GraphDef; train.read_graph reads one from a file",
            actual=type(graph_def).__name__,
        )
    check_kind(input_map or {}, Mapping, "the input map", "a mapping of names to tensors")
    check_kind(return_elements or [], Iterable, "the elements to return", "a list of names")
    for element in (*(input_map or ()), *(return_elements or ())):
        check_kind(element, (str, bytes), "the name of an element", "a str")
    if graph_def.version > VERSION:
        raise InvalidArgumentError(
            "the definition needs a later version of the ops", expected=f"at most {VERSION}", actual=graph_def.version
        )
    graph = default_graph()
    with graph.all_or_nothing(), graph.name_scope("import" if name is None else name) as prefix:
        known = {op_def.name: op_def for op_def in producer_op_list or ()}
        # Functions come first, because nodes may call them.
        for function in graph_def.functions:
            _add_function(graph, function)
        nodes = modernized(graph_def.nodes)
        work = Import(graph, nodes, prefix, _mapped(graph, input_map or {}, nodes), known)
        for node in work.in_order():
            work.build(node)
        work.close_loops()
        work.check_map()
        return None if return_elements is None else [work.element(_text(e)) for e in return_elements]


def _add_function(graph: Graph, function: FunctionDef) -> None:
    """Add a function of the library to the graph. Its body is built when it is first called."""
    function = replace(function, nodes=tuple(modernized(function.nodes)))
    known = graph.functions.get(function.name)
    if known is not None and known.definition != function:
        raise AlreadyExistsError(
            f"the graph already has a different function {function.name!r}",
            expected=known.definition.signature,
            actual=function.signature,
        )
    graph.functions.setdefault(function.name, StoredFunction(function))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _mapped(graph: Graph, input_map: Mapping[str, Any], nodes: Iterable[NodeDef]) -> dict[InputRef, Any]:
    handles = {node.name for node in nodes if node.op == "VarHandleOp"}
    found: dict[InputRef, Any] = {}
    for key, value in input_map.items():
        ref = InputRef.parse(_text(key))
        if ref in found:
            raise InvalidArgumentError("input_map names an output twice", actual=str(ref))
        if ref.port < 0:
            element = graph.as_graph_element(value)
            found[ref] = element.op if isinstance(element, Tensor) else element
        else:
            given = graph.as_graph_element(convert_to_tensor(value, name="input"), allow_operation=False)
            # A variable that replaces a variable is its handle, not its value.
            variable = graph.variable_of(given) if isinstance(given, Tensor) and ref.node in handles else None
            found[ref] = given if variable is None else variable.handle
    return found


class Import:
    """The import of one definition into a graph."""

    def __init__(
        self,
        graph: Graph,
        nodes: Iterable[NodeDef],
        prefix: str,
        mapped: Mapping[InputRef, Any],
        producer: Mapping[str, OpDef],
    ) -> None:
        self.graph = graph
        self.prefix = prefix
        self.mapped = mapped
        self.producer = producer
        self.nodes: dict[str, NodeDef] = {}
        self.made: dict[str, Operation] = {}
        self.used: set[InputRef] = set()
        self.back_edges: dict[str, list[tuple[int, InputRef]]] = {}
        self.has_frames = False
        # Colocation with an argument is dropped: an argument is wherever the call gets it from.
        self.beside_arguments = {f"loc:@{ref.node}" for ref in mapped}
        for node in nodes:
            self.has_frames = self.has_frames or node.op in ("Enter", "Switch")
            if node.name in self.nodes:
                raise _at(InvalidArgumentError(f"the definition has two nodes {node.name!r}"), node)
            self.nodes[node.name] = node
            # A node of the definition keeps the name to itself: colocation with it stays.
            self.beside_arguments.discard(f"loc:@{node.name}")

    def in_order(self) -> list[NodeDef]:
        """Return the nodes, each after its inputs, otherwise in the order of the definition.

        Raises:
            InvalidArgumentError: an input is unknown, or the nodes form a cycle.
        """
        position = {name: i for i, name in enumerate(self.nodes)}
        names = list(self.nodes)
        missing = {name: self._needed(node) for name, node in self.nodes.items()}
        consumers: dict[str, list[str]] = {name: [] for name in names}
        for name, needed in missing.items():
            for source in needed:
                consumers[source].append(name)
        counts = {name: len(needed) for name, needed in missing.items()}
        # The heap keeps the order of the definition among the nodes that are ready.
        ready = [position[name] for name, count in counts.items() if count == 0]
        heapq.heapify(ready)
        order: list[NodeDef] = []
        while ready:
            name = names[heapq.heappop(ready)]
            order.append(self.nodes[name])
            for consumer in consumers[name]:
                counts[consumer] -= 1
                if counts[consumer] == 0:
                    heapq.heappush(ready, position[consumer])
        if len(order) < len(names):
            raise self._cycle({name for name, count in counts.items() if count}, missing)
        return order

    def _needed(self, node: NodeDef) -> set[str]:
        needed: set[str] = set()
        for index, ref in enumerate(node.refs()):
            if ref in self.mapped:
                self.used.add(ref)
            elif index > 0 and self._is_back_edge(node, ref):
                # Only a later input of a Merge may close a loop; the first one comes from outside of it.
                self.back_edges.setdefault(node.name, []).append((index, ref))
            elif ref.node in self.nodes:
                needed.add(ref.node)
            else:
                raise _at(
                    InvalidArgumentError(f"unknown input {str(ref)!r}", expected="a node of the definition"), node
                )
        return needed

    def _is_back_edge(self, node: NodeDef, ref: InputRef) -> bool:
        """Return whether the input closes a loop, and so exists only when the rest of the loop does."""
        source = self.nodes.get(ref.node)
        return node.op == "Merge" and source is not None and source.op == "NextIteration" and ref.port >= 0

    def close_loops(self) -> None:
        """Set the inputs of Merge nodes that come from NextIteration; until then another input takes their place."""
        for name, edges in self.back_edges.items():
            for index, ref in edges:
                try:
                    self.made[name].update_input(index, self._tensor(ref))
                except OpError as error:
                    raise _at(error, self.nodes[name]) from error.__cause__

    def _cycle(self, left: set[str], missing: Mapping[str, set[str]]) -> OpError:
        """Return the error for nodes that wait for one another."""
        # Each waiting node has an unfinished input, so walking back along such inputs must close a cycle.
        path: list[str] = []
        # The least name, so that the error is the same each time.
        name = min(left)
        while name not in path:
            path.append(name)
            name = min(missing[name] & left)
        circle = [*path[path.index(name) :], name]
        shown = " ← ".join(circle if len(circle) <= 8 else [*circle[:7], "…"])
        return _at(InvalidArgumentError("the nodes form a cycle", actual=shown), self.nodes[name])

    def build(self, node: NodeDef) -> None:
        """Make one node, whose inputs exist.

        Raises:
            OpError: the node does not fit its op; the error names the node of the definition.
        """
        try:
            self.made[node.name] = self._build(node)
        except OpError as error:
            raise _at(error, node) from error.__cause__
        # A shape function may meet attributes or shapes that no builder would let through.
        except Exception as error:
            made = InvalidArgumentError(f"the node does not fit its op: {type(error).__name__}: {error}")
            raise _at(made, node) from error

    def _build(self, node: NodeDef) -> Operation:
        node = self._as_call(node)
        op_def = OPS.get(node.op)
        refs = node.refs()
        # A back edge has no tensor yet, so the first input stands in until `close_loops`.
        later = {ref for _, ref in self.back_edges.get(node.name, ())}
        data = [self._tensor(refs[0] if ref in later else ref) for ref in refs if ref.port >= 0]
        control = [self.mapped.get(ref) or self.made[ref.node] for ref in refs if ref.port < 0]
        attrs = self._attrs(node, op_def)
        # The shapes are no attribute of the node: they refine those that are inferred.
        shapes = attrs.pop(_SHAPES, None)
        # The prefix makes the frame name unique: a definition that is imported twice must give two separate loops.
        if node.op == "Enter":
            attrs["frame_name"] = self.prefix + attrs["frame_name"]
        inputs = by_name(op_def, data, attrs)
        resolved = infer_attrs(op_def, inputs, attrs)
        for arg in op_def.inputs:
            if arg.list_attr is not None and resolved[arg.list_attr] != attrs[arg.list_attr]:
                raise DTypeError(
                    f"input {arg.name!r} has the wrong dtypes",
                    expected=attrs[arg.list_attr],
                    actual=resolved[arg.list_attr],
                )
        specs = output_specs(op_def, inputs, resolved)
        if node.op in EXPANDERS and self.has_frames and data:
            control.append(self._beginning(node, data[0]))
        with self._waiting(refs):
            return self.graph.create_op(
                node.op,
                data,
                resolved,
                specs if shapes is None else _with_shapes(specs, shapes),
                # The "/" at the end keeps the name as it is, so that a clash is an error.
                name=f"{self.prefix}{node.name}/",
                control_inputs=control,
                device=DeviceSpec.from_string(node.device).to_string(),
            )

    def _waiting(self, refs: Sequence[InputRef]) -> AbstractContextManager[object]:
        """Return the context manager for creating a node with these inputs.

        It clears the open control dependencies if the node may be inside a loop of the definition, because only an
        Enter may lead into a loop. The node still runs after them, because an input comes from a node that does.
        """
        if not self.has_frames or all(ref in self.mapped for ref in refs):
            return nullcontext()
        return enter_scope(self.graph, lambda outer: outer._replace(controllers=()))

    def _as_call(self, node: NodeDef) -> NodeDef:
        """Return a call of the function if the node's op is the name of a function."""
        if node.op in OPS or node.op not in self.graph.functions:
            return node
        definition = self.graph.functions[node.op].definition
        attrs = {key: value for key, value in node.attrs.items() if key.startswith("_")}
        attrs |= {"Tin": tuple(a.dtype for a in definition.inputs), "Tout": tuple(a.dtype for a in definition.outputs)}
        # The effects of the function are unknown until its body is built, so the call counts as stateful.
        return replace(node, op="StatefulPartitionedCall", attrs={**attrs, "f": FunctionRef(node.op)})

    def _beginning(self, node: NodeDef, data: Tensor) -> Operation:
        """Return the node that the nodes without inputs in a call wait for."""
        # The branches and loops of a definition are not known.
        # This edge makes the nodes run where and when the call does.
        specs = [(data.dtype, data.dims)]
        return self.graph.create_op("Identity", [data], {"T": data.dtype}, specs, name=f"{node.name}/called")

    def _tensor(self, ref: InputRef) -> Tensor:
        found = self.mapped.get(ref)
        if found is None:
            outputs = self.made[ref.node].outputs
            if ref.port >= len(outputs):
                raise InvalidArgumentError(
                    f"unknown input {str(ref)!r}", expected=f"one of {len(outputs)} outputs", actual=ref.port
                )
            found = outputs[ref.port]
        tensor: Tensor = found
        return tensor

    def _attrs(self, node: NodeDef, op_def: OpDef) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.attrs.items():
            if key.startswith("_"):
                found[key] = self._private(node, key, value)
            elif key in op_def.attrs or not self._is_producers_default(node, key, value):
                found[key] = _checked(op_def, key, value)
        for attr in op_def.attrs.values():
            if attr.name not in found and not attr.has_default:
                raise InvalidArgumentError(
                    f"attribute {attr.name!r} is missing", expected=f"a value of kind {attr.kind}", actual="none"
                )
            found.setdefault(attr.name, attr.default)
        return found

    def _is_producers_default(self, node: NodeDef, key: str, value: AttrValue) -> bool:
        attr = self.producer[node.op].attrs.get(key) if node.op in self.producer else None
        return attr is not None and attr.has_default and attr.check(_value(value)) == attr.default

    def _private(self, node: NodeDef, key: str, value: Any) -> Any:
        if key == _SHAPES:
            return _value(value)
        if key != "_class":
            return value if isinstance(value, bool | int | float | str) else _value(value)
        groups = value if isinstance(value, tuple) else (value,)
        groups = tuple(group for group in groups if group not in self.beside_arguments)
        for group in groups:
            target = group.removeprefix("loc:@") if isinstance(group, str) else None
            if target is None or (group.startswith("loc:@") and target not in self.nodes):
                raise InvalidArgumentError("colocated with an unknown node", expected="'loc:@node'", actual=repr(group))
        return tuple(f"loc:@{self.prefix}{g[5:]}" if g.startswith("loc:@") else g for g in groups)

    def result(self, text: str) -> Tensor:
        """Return the tensor that a function returns: an output of a node, or an argument."""
        ref = InputRef.parse(text)
        if ref.port < 0 or (ref not in self.mapped and ref.node not in self.made):
            raise InvalidArgumentError(f"the function returns {text!r}, which it does not have", actual=text)
        return self._tensor(ref)

    def running(self, text: str) -> Operation:
        """Return the node that a function runs whenever it is called."""
        found = self.made.get(InputRef.parse(text).node)
        if found is None:
            raise InvalidArgumentError(
                f"the function runs {text!r}, which it does not have", expected="one of its nodes", actual=text
            )
        return found

    def check_map(self) -> None:
        """Raise InvalidArgumentError if `input_map` has keys that are not outputs of the definition."""
        unknown = [str(ref) for ref in self.mapped if ref not in self.used and not self._has(ref)]
        if unknown:
            raise InvalidArgumentError(
                f"input_map has keys that are not in the definition: {', '.join(unknown)}",
                expected="names of its nodes and outputs",
                actual=unknown,
            )

    def _has(self, ref: InputRef) -> bool:
        return ref.node in self.made and ref.port < len(self.made[ref.node].outputs)

    def element(self, name: str) -> Operation | Tensor:
        """Return a node, or a tensor (or its replacement), by its name in the definition."""
        ref = InputRef.parse(name)
        if ":" in name and ref in self.mapped:
            tensor: Tensor = self.mapped[ref]
            return tensor
        found = self._has(ref) if ":" in name else ref.node in self.made
        if ref.port < 0 or not found:
            raise InvalidArgumentError(
                f"return_elements has {name!r}, which is not in the definition", expected="'node' or 'node:0'"
            )
        return self.made[ref.node].outputs[ref.port] if ":" in name else self.made[ref.node]


def _at(error: OpError, node: NodeDef) -> OpError:
    return error.at(node.name, node.op, user_line())


def _value(value: AttrValue) -> Any:
    """Convert an attribute of a definition to an attribute of a node."""
    if isinstance(value, TensorData):
        return value.to_array()
    return tuple(_value(item) for item in value) if isinstance(value, tuple) else value


def _checked(op_def: OpDef, key: str, value: AttrValue) -> Any:
    attr = op_def.attr(key)
    wanted = {"tensor": TensorData, "type": DType, "func": FunctionRef}.get(attr.kind)
    if wanted is not None and not isinstance(value, wanted):
        raise InvalidArgumentError(f"attribute {key!r} has the wrong type", expected=attr.kind, actual=repr(value)[:80])
    return attr.check(_value(value))


def by_name(op_def: OpDef, data: Sequence[Tensor], attrs: Attrs) -> dict[str, Tensor | list[Tensor]]:
    """Return the flat data inputs by the names of the signature."""
    wanted = sum(arg.count(attrs) for arg in op_def.inputs)
    if wanted != len(data):
        raise InvalidArgumentError("wrong number of inputs", expected=wanted, actual=len(data))
    return {
        arg.name: list(tensors) if arg.is_sequence else tensors[0]
        for arg, tensors in per_argument(op_def.inputs, attrs, data)
    }


def _with_shapes(specs: Sequence[tuple[DType, Dims]], shapes: object) -> list[tuple[DType, Dims]]:
    """Return the specs, refined by the shapes in the definition."""
    if not isinstance(shapes, tuple) or len(shapes) != len(specs):
        raise InvalidArgumentError(f"{_SHAPES} does not fit", expected=f"{len(specs)} shapes", actual=repr(shapes)[:80])
    return [(dtype, merge_dims(dims, dims_of(known))) for (dtype, dims), known in zip(specs, shapes, strict=True)]
