"""Conversion of references to resources.

A node that received a reference and used the value gets its own ReadVariableOp, which runs after everything that the
node waits for: TensorFlow read the buffer at that moment. A node that changed a variable and passed the reference on
becomes an update followed by a read, and the read has the node's name. So each name still yields the same value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from aioflow.errors import InvalidArgumentError
from aioflow.formats.graphs.older.forms import VARIABLES, expanded, newer_form
from aioflow.graph.definitions import InputRef, NodeDef
from aioflow.graph.dtypes import DType, int32, resource
from aioflow.graph.opdef import OPS

_MANY_EDGES: Final = 1 << 8


class _Reference(NamedTuple):
    """The target of a reference: the handle of a variable of this dtype, as it is after the nodes in `waits`."""

    handle: str
    dtype: DType
    waits: tuple[str, ...] = ()


def modernized(nodes: Sequence[NodeDef]) -> Sequence[NodeDef]:
    """Return the nodes with older ops replaced by current ones. A node whose op has no newer form stays unchanged.

    Raises:
        InvalidArgumentError: references form a cycle, or a node does not fit its op.
    """
    older = {op for op in {node.op for node in nodes} if op not in OPS}
    # Nearly every graph has no older ops, and then nothing is copied.
    if not older:
        return nodes
    names = _Names(node.name for node in nodes)
    # Expansion comes first: it may yield ops on references, which the lowering then replaces.
    plain = [made for node in nodes for made in expanded(node, names.fresh)]
    return list(_Lowering(plain, names).all())


class _Names:
    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        # The last suffix that was tried for each name.
        self._tried: dict[str, int] = {}

    def fresh(self, name: str) -> str:
        found, tried = name, self._tried.get(name, 0)
        # Starting at the last suffix tried keeps many equal names from taking quadratic time.
        while found in self._taken:
            tried += 1
            found = f"{name}_{tried}"
        self._tried[name] = tried
        self._taken.add(found)
        return found


class _Lowering:
    """The conversion of the nodes of one graph definition."""

    def __init__(self, nodes: Sequence[NodeDef], names: _Names) -> None:
        self._nodes = nodes
        self._names = names
        self._by_name = {node.name: node for node in nodes}
        self._known: dict[InputRef, _Reference | None] = {}
        self._others: dict[str, str] = {}
        # Handles of the variables that already have a read without control inputs.
        self._read: set[str] = set()

    def all(self) -> Iterator[NodeDef]:
        """Yield the converted nodes, then a read for each variable that has none, so that its value can be fetched."""
        for node in self._nodes:
            yield from self._converted(node)
        for node in self._nodes:
            if node.op in VARIABLES and node.name not in self._read:
                name = self._names.fresh(f"{node.name}/Read/ReadVariableOp")
                yield NodeDef(name, "ReadVariableOp", (node.name,), node.device, {"dtype": _dtype(node, "dtype")})

    # -- resolving references -----------------------------------------------------------------------------------------

    def _reference(self, text: str) -> _Reference | None:
        """Return the target of the reference that `text` names, or None if this input is a value."""
        # A dict as an ordered set: updates on the way to the variable, the outermost first.
        passed: dict[InputRef, None] = {}
        ref = InputRef.parse(text)
        # A loop, not a recursion: a chain of updates may be longer than Python's stack.
        while ref not in self._known:
            if ref in passed:
                error = InvalidArgumentError("references go in a circle", actual=str(ref))
                raise error.at(ref.node, self._by_name[ref.node].op, None)
            node = self._by_name.get(ref.node)
            form = None if node is None or ref.port else newer_form(node.op)
            if node is None or form is None or not self._is_update(node, form):
                self._known[ref] = self._origin(node, ref)
                break
            passed[ref] = None
            ref = InputRef.parse(node.inputs[0])
        found = self._known[ref]
        # From the variable outwards: each update waits for itself only, since it runs after the one before.
        for updated in reversed(passed):
            self._known[updated] = found and found._replace(waits=(f"^{self._update(updated.node)}",))
        return self._known[next(iter(passed))] if passed else found

    def _is_update(self, node: NodeDef, form: str) -> bool:
        """Return True if the node changes its first input and passes the reference on."""
        if form not in OPS or OPS.get(form).outputs or not node.inputs or node.inputs[0].startswith("^"):
            return False
        return OPS.get(form).inputs[0].dtype is resource

    def _origin(self, node: NodeDef | None, ref: InputRef) -> _Reference | None:
        if node is None:
            return None
        if node.op in VARIABLES:
            return _Reference(node.name, _dtype(node, "dtype")) if ref.port == 0 else None
        form = newer_form(node.op)
        # Switch and the like pass references on; the second output of a Merge is an index.
        if form is None or node.op != f"Ref{form}" or (form == "Merge" and ref.port):
            return None
        handle = InputRef(self._beside(node.name, "handle"), ref.port) if self._is_fetched(node, form) else ref
        return _Reference(str(handle), _dtype(node, "T"))

    def _is_fetched(self, node: NodeDef, form: str) -> bool:
        """Return True for an Exit, an Identity, or a Merge that is not a loop's: its value may be fetched by name."""
        sources = [self._by_name.get(InputRef.parse(text).node) for text in node.inputs]
        is_loops = any(source is not None and source.op == "RefNextIteration" for source in sources)
        return form in ("Exit", "Identity") or (form == "Merge" and not is_loops)

    def _beside(self, name: str, part: str) -> str:
        """Return the name of the node that does the work of the node `name`.

        The name itself now belongs to the node that yields the value afterwards.
        """
        if name not in self._others:
            self._others[name] = self._names.fresh(f"{name}/{part}")
        return self._others[name]

    def _update(self, name: str) -> str:
        # Renamed once, so that all readers of the node find the same new name.
        return self._beside(name, "update")

    # -- converting a node --------------------------------------------------------------------------------------------

    def _converted(self, node: NodeDef) -> Iterator[NodeDef]:
        if node.op in VARIABLES:
            yield _handle(node)
            return
        form = newer_form(node.op)
        references = {text: self._reference(text) for text in node.inputs if not text.startswith("^")}
        if form is None and not any(references.values()):
            yield node
            return
        # An Identity of a reference is how programs read a variable, so it becomes the read itself.
        if node.op == "Identity" and form is None:
            yield self._as_read(node, references[node.inputs[0]])
            return
        before, inputs = self._taken(node, form, references)
        yield from before
        if form is None:
            yield replace(node, inputs=tuple(inputs))
            return
        made = NodeDef(node.name, form, tuple(inputs), node.device, _attrs(node, form))
        if node.op == f"Ref{form}" and self._is_fetched(node, form):
            yield from self._with_value(made)
            return
        reference = references[node.inputs[0]] if self._is_update(node, form) else None
        if reference is None:
            yield made
            return
        yield replace(made, name=self._update(node.name))
        after = (reference.handle, f"^{self._update(node.name)}")
        yield NodeDef(node.name, "ReadVariableOp", after, node.device, {"dtype": reference.dtype})

    def _taken(
        self, node: NodeDef, form: str | None, references: Mapping[str, _Reference | None]
    ) -> tuple[list[NodeDef], list[str]]:
        """Return the nodes to insert before `node`, and its inputs, control inputs included."""
        handles = _handles(form, node) if form is not None else set()
        before: list[NodeDef] = []
        after: list[str] = []
        inputs: list[str] = []
        waits: list[str] = []
        for index, text in enumerate(node.inputs):
            reference = references.get(text)
            if reference is None:
                inputs.append(text)
            elif index not in handles:
                if not before:
                    # Computed once per node, at its first input that is read.
                    after = self._awaited(node, references)
                    before += self._joined(node, after, len(node.inputs))
                    after = [f"^{before[0].name}"] if before else after
                before.append(self._reading(node, index, reference, after))
                inputs.append(before[-1].name)
            elif form == "Merge" and reference.waits:
                # A Merge runs when one of its inputs arrives, so it cannot wait for the updates of all of them.
                name = self._names.fresh(f"{node.name}/input_{index}")
                before.append(NodeDef(name, "Identity", (reference.handle, *reference.waits), "", {"T": resource}))
                inputs.append(name)
            else:
                inputs.append(reference.handle)
                waits += reference.waits
        # Data inputs first, then control inputs without duplicates.
        return before, inputs + [text for text in dict.fromkeys(waits) if text not in inputs]

    def _with_value(self, node: NodeDef) -> Iterator[NodeDef]:
        """Yield the node that passes the reference on, and a read of its value under the node's own name."""
        handle, dtype = self._beside(node.name, "handle"), _dtype(self._by_name[node.name], "T")
        yield replace(node, name=handle)
        if node.op != "Merge":
            yield NodeDef(node.name, "ReadVariableOp", (handle,), node.device, {"dtype": dtype})
            return
        read = NodeDef(self._names.fresh(f"{node.name}/value"), "ReadVariableOp", (handle,), "", {"dtype": dtype})
        yield read
        yield NodeDef(node.name, "IdentityN", (read.name, f"{handle}:1"), node.device, {"T": (dtype, int32)})

    def _as_read(self, node: NodeDef, reference: _Reference | None) -> NodeDef:
        if reference is None:
            return node
        control = [text for text in node.inputs[1:] if text not in reference.waits]
        if not control and not reference.waits:
            self._read.add(reference.handle)
        private = {key: value for key, value in node.attrs.items() if key.startswith("_")}
        inputs = (reference.handle, *control, *reference.waits)
        return NodeDef(node.name, "ReadVariableOp", inputs, node.device, {**private, "dtype": reference.dtype})

    def _awaited(self, node: NodeDef, taken: Mapping[str, _Reference | None]) -> list[str]:
        """Return the control inputs of the reads of a node: everything that the node itself waits for."""
        control = [text for text in node.inputs if text.startswith("^")]
        # A Merge does not wait for both of its inputs.
        if node.op != "Merge":
            sources = [self._by_name.get(InputRef.parse(text).node) for text, ref in taken.items() if ref is None]
            # A source without inputs, such as a constant, has nothing to wait for.
            control += [f"^{source.name}" for source in sources if source is not None and source.inputs]
            control += [wait for ref in taken.values() if ref is not None for wait in ref.waits]
        return list(dict.fromkeys(control))

    def _joined(self, node: NodeDef, control: Sequence[str], readers: int) -> Iterator[NodeDef]:
        """Yield a NoOp that waits for `control` if direct edges to all readers would be too many."""
        # Edges grow as readers × control inputs; a NoOp in between makes them a sum.
        if readers * len(control) > _MANY_EDGES and node.op != "Merge":
            yield NodeDef(self._names.fresh(f"{node.name}/before"), "NoOp", tuple(control))

    def _reading(self, node: NodeDef, index: int, reference: _Reference, control: Sequence[str]) -> NodeDef:
        """Return a read of the value of input `index` that runs after `control`."""
        # A read in front of a Merge waits for its own updates only, not for those of the other input.
        own = reference.waits if node.op == "Merge" else ()
        inputs = (reference.handle, *dict.fromkeys((*control, *own)))
        name = self._names.fresh(f"{node.name}/read_{index}")
        return NodeDef(name, "ReadVariableOp", inputs, "", {"dtype": reference.dtype})


def _dtype(node: NodeDef, attr: str) -> DType:
    dtype = node.attrs.get(attr)
    if not isinstance(dtype, DType):
        error = InvalidArgumentError(f"attribute {attr!r} is missing", expected="a dtype", actual=dtype)
        raise error.at(node.name, node.op, None)
    return dtype


def _handle(node: NodeDef) -> NodeDef:
    kept = {key: value for key, value in node.attrs.items() if key.startswith("_") and key != "_output_shapes"}
    names = {key: node.attrs[key] for key in ("container", "shared_name") if key in node.attrs}
    attrs: dict[str, Any] = {**kept, **names, "dtype": _dtype(node, "dtype"), "shape": node.attrs.get("shape")}
    if node.op == "Variable" and attrs["shape"] == ():
        # The older op had no other way to state an unknown shape.
        attrs["shape"] = None
    return NodeDef(node.name, "VarHandleOp", node.inputs, node.device, attrs)


def _handles(form: str, node: NodeDef) -> set[int]:
    """Return the positions of the inputs that are handles in the newer form."""
    found: set[int] = set()
    at = 0
    for arg in OPS.get(form).inputs:
        if arg.number_attr is None:
            count = 1
        else:
            given = node.attrs.get(arg.number_attr)
            count = given if isinstance(given, int) else 0
        # Switch, Merge and the like have handles wherever their older form had references.
        passes = node.op == f"Ref{form}" and arg.type_attr == "T"
        if arg.dtype is resource or passes:
            found.update(range(at, at + min(count, len(node.inputs))))
        at += count
    return found


def _attrs(node: NodeDef, form: str) -> dict[str, Any]:
    known = OPS.get(form).attrs
    attrs = {key: value for key, value in node.attrs.items() if key in known or key.startswith("_")}
    # These shapes describe the outputs of the older op, which were references or strings.
    attrs.pop("_output_shapes", None)
    if "dtype" in known and "dtype" not in attrs and "T" in node.attrs:
        attrs["dtype"] = node.attrs["T"]
    if node.op == f"Ref{form}":
        attrs["T"] = resource
    return attrs
