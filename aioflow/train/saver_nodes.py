"""The nodes of a saver, which save, restore, and hold a snapshot until it is written; also those of a stored saver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Final

from aioflow.graph import dtypes
from aioflow.graph.graph import Graph, GraphKeys, Operation, Tensor
from aioflow.graph.static_value import constant_value
from aioflow.ops.apply import constant, make, make_list, make_op
from aioflow.ops.core import group, identity, no_op, placeholder, placeholder_with_default
from aioflow.ops.io import checkpoints as _checkpoints  # noqa: F401  # defines the ops that are made here
from aioflow.ops.lookup.mutable import ExportedTable, SavedColumn
from aioflow.ops.variables.adopted import AdoptedVariable
from aioflow.ops.variables.variable import Variable
from aioflow.train.saved_variables import Saved, check_saved


class CheckpointFormat(Enum):
    """The format of a checkpoint: one file, blocks, or TensorFlow's bundle."""

    FILE = "file"
    BLOCKS = "blocks"
    BUNDLE = "bundle"


class SaverNodes:
    """The nodes of one saver.

    Attributes:
        filename, base, key: Tensors to feed: the checkpoint, the checkpoint it may refer to, the name of a snapshot.
        saved, restored: Nodes that write the checkpoint, and read it back.
        hold, written: Nodes that take a snapshot, and write it.
    """

    def __init__(
        self,
        name: str,
        variables: Sequence[Saved],
        filename: str,
        reshape: bool,
        sequential: bool,
        form: CheckpointFormat,
    ) -> None:
        self.variables = variables
        graph: Graph = variables[0].variable.graph
        # A saver made inside a block must not wait for its nodes at each save.
        with graph.as_default(), graph.control_dependencies(None), graph.name_scope(name) as scope:
            # The names are TensorFlow's, which its tools expect: save/Const:0, save/restore_all.
            default = placeholder_with_default(constant(filename, name="filename/input"), (), name="filename")
            self.filename: Tensor = placeholder_with_default(default, (), name="Const")
            self.base: Tensor = placeholder_with_default(constant("", name="base/input"), (), name="base")
            self.key: Tensor = placeholder(dtypes.string, (), name="key")
            names = constant([saved.name for saved in variables], dtypes.string)
            slices = constant([saved.spec for saved in variables], dtypes.string)
            values = _snapshots(variables)
            save = self._save(names, slices, values, form)
            with graph.control_dependencies([save]):
                self.saved: Tensor = identity(self.filename, name="control_dependency")
            # The scope's name identifies the holder, so two savers do not displace each other's snapshots.
            holder = make("_SnapshotHolder", shared_name=scope, name="holder")
            self.hold: Operation = make_op("_HoldTensors", holder, self.key, values, name="hold")
            wanted = [saved.variable.dtype for saved in variables]
            values = make_list("_HeldTensors", holder, self.key, dtypes=wanted, name="held")
            self.written: Operation = self._save(names, slices, values, form)
            self.restored: Operation = self._restore(graph, names, slices, reshape, sequential)

    def _save(self, names: Tensor, slices: Tensor, values: Sequence[Tensor], form: CheckpointFormat) -> Operation:
        if form is CheckpointFormat.BLOCKS:
            return make_op("_SaveBlocks", self.filename, self.base, names, slices, values, name="SaveBlocks")
        op = "_SaveBundle" if form is CheckpointFormat.BUNDLE else "SaveV2"
        return make_op(op, self.filename, names, slices, values, name="SaveV2")

    def _restore(self, graph: Graph, names: Tensor, slices: Tensor, reshape: bool, sequential: bool) -> Operation:
        wanted = [saved.variable.dtype for saved in self.variables]
        values = make_list("RestoreV2", self.filename, names, slices, dtypes=wanted, name="RestoreV2")
        assigned: list[Operation] = []
        columns: dict[Any, list[Tensor]] = {}
        for (_, variable, part), value in zip(self.variables, values, strict=True):
            if isinstance(variable, SavedColumn):
                # The keys of a table come before its values, because the tensors are sorted by name.
                columns.setdefault(variable.table, []).append(value)
                continue
            if reshape and part is None:
                value = make("Reshape", value, [d if d is not None else -1 for d in variable.dims])
            # Each assignment waits for the one before.
            waits = assigned[-1:] if sequential else []
            with graph.control_dependencies(waits), graph.colocate_with(variable.handle.op):
                assigned.append(make_op("AssignVariableOp", variable.handle, value, name="AssignVariableOp"))
        for table, contents in columns.items():
            with graph.control_dependencies(assigned[-1:] if sequential else []):
                assigned.append(table.imported(*contents))
        return group(*assigned, name="restore_all") if assigned else no_op(name="restore_all")

    def check(self, path: str, reshape: bool) -> None:
        """Check the checkpoint against the variables, before any of them changes. Raises as `check_saved`; blocks."""
        check_saved(path, self.variables, reshape)


def _snapshots(variables: Sequence[Saved]) -> list[Tensor]:
    """Return a snapshot of each variable. Keys and values of a table come from the same moment."""
    exported: dict[object, list[Tensor]] = {}
    found = []
    for variable in (saved.variable for saved in variables):
        if isinstance(variable, SavedColumn):
            if variable.table not in exported:
                # Exported once for both columns: two exports could see different entries.
                exported[variable.table] = variable.table.exported()
            found.append(exported[variable.table][variable.index])
        else:
            found.append(_snapshot(variable))
    return found


def _snapshot(variable: Variable) -> Tensor:
    with variable.graph.colocate_with(variable.handle.op):
        taken: Tensor = make("_SnapshotVariable", variable.handle, dtype=variable.dtype)
        return taken


# ── a stored saver: its variables are found from its nodes in the imported graph ──────────────────────────────────────


_VARIABLES: Final = (GraphKeys.GLOBAL_VARIABLES, GraphKeys.LOCAL_VARIABLES)


def restored_variables(restore: Operation) -> dict[str, Any]:
    """Return the variables and tables that a node restores, by name, in the form that `Saver` accepts.

    Variables that are in a collection of the graph are returned as these objects; others are wrapped.
    """
    known = {v.handle: v for key in _VARIABLES for v in restore.graph.get_collection(key) if isinstance(v, Variable)}
    found: dict[str, Any] = {}
    for name, handles in _restored_handles(restore).items():
        parts = [known[handle] if handle in known else AdoptedVariable(handle, collections=[]) for handle in handles]
        whole = len(parts) == 1 and parts[0].save_slice_info is None
        found[name] = parts[0] if whole else parts
    return found | _restored_tables(restore)


def _restored_tables(restore: Operation) -> dict[str, ExportedTable]:
    """Return the tables that a node restores, by checkpoint name: the name of the keys without "-keys"."""
    found: dict[str, ExportedTable] = {}
    for op in _ancestors(restore):
        if op.type == "LookupTableImportV2":
            handle, keys, values = op.inputs
            name = _name_in_checkpoint(keys)
            if name is not None:
                found[name.removesuffix("-keys")] = ExportedTable(handle, keys.dtype, values.dtype)
    return found


def _restored_handles(restore: Operation) -> dict[str, list[Tensor]]:
    """Return the handles of the variables that a node restores, by checkpoint name.

    Several handles of one name are parts of one tensor.
    """
    found: dict[str, list[Tensor]] = {}
    for op in _ancestors(restore):
        if op.type == "AssignVariableOp":
            name = _name_in_checkpoint(op.inputs[1])
            if name is not None:
                found.setdefault(name, []).append(op.inputs[0])
    return found


def _ancestors(last: Operation) -> Iterator[Operation]:
    waiting, seen = [last], {last}
    while waiting:
        op = waiting.pop()
        yield op
        sources = {*(tensor.op for tensor in op.inputs), *op.waits_for} - seen
        seen |= sources
        waiting += sorted(sources, key=lambda source: source.name)


def _name_in_checkpoint(value: Tensor) -> str | None:
    while value.op.type in ("Identity", "Reshape"):
        value = value.op.inputs[0]
    if value.op.type != "RestoreV2":
        return None
    names = constant_value(value.op.inputs[1])
    if names is None or value.value_index >= names.size:
        return None
    return str(names.reshape(-1)[value.value_index].decode())
