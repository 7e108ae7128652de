"""Recovery of a stored saver's variables from its nodes in the imported graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from aioflow.graph.graph import GraphKeys, Operation, Tensor
from aioflow.graph.static_value import constant_value
from aioflow.ops.lookup.mutable import ExportedTable
from aioflow.ops.variables.adopted import AdoptedVariable
from aioflow.ops.variables.variable import Variable

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
