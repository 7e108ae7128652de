"""What a saver's nodes restore, found in the graph that it is stored with."""

from __future__ import annotations

from collections.abc import Iterator

from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.static_value import constant_value

__all__ = ["restored_handles"]


def restored_handles(restore: Operation) -> dict[str, list[Tensor]]:
    """The handles of the variables that a node restores, by the names that their values have in a checkpoint. Several
    of one name are parts.
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
