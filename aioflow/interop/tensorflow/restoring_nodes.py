"""The nodes that save and restore the variables of a SavedModel, named as TensorFlow 1's Saver names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.graphdef import NodeDef, TensorData
from aioflow.graph.shapes import Dims

__all__ = ["RESTORE", "SAVED", "SAVER_FILE", "names_of", "restoring_nodes"]

SAVER_FILE: Final = "save/Const:0"
SAVED: Final = "save/control_dependency:0"
RESTORE: Final = "save/restore_all"


def names_of(i: int) -> tuple[str, str]:
    """The nodes that read and restore the i-th variable."""
    return f"save/Read_{i}", f"save/Assign_{i}"


def restoring_nodes(variables: Sequence[tuple[str, DType, Dims]]) -> list[NodeDef]:
    """Nodes for the variables whose handles have these names, dtypes and shapes.

    There is more than needed to restore them: TensorFlow looks for a read and an initializer of each variable, too.
    """
    names = [name for name, *_ in variables]
    dtypes_ = tuple(dtype for _, dtype, _ in variables)
    default: dict[str, Any] = {"dtype": dtypes.string, "shape": ()}
    nodes = [
        _constant("save/filename/input", np.array(b"model", object)),
        NodeDef("save/filename", "PlaceholderWithDefault", ("save/filename/input",), attrs=default),
        NodeDef("save/Const", "PlaceholderWithDefault", ("save/filename",), attrs=default),
    ]
    for kind in ("SaveV2", "RestoreV2"):
        nodes.append(_constant(f"save/{kind}/tensor_names", np.array([name.encode() for name in names], object)))
        nodes.append(_constant(f"save/{kind}/shape_and_slices", np.array([b""] * len(names), object)))
    nodes += [_read(i, name, dtype) for i, (name, dtype, _) in enumerate(variables)]
    about = ("save/Const", "save/{}/tensor_names", "save/{}/shape_and_slices")
    reads = tuple(f"save/Read_{i}" for i in range(len(names)))
    nodes.append(
        NodeDef("save/SaveV2", "SaveV2", (*(t.format("SaveV2") for t in about), *reads), attrs={"dtypes": dtypes_})
    )
    nodes.append(
        NodeDef("save/control_dependency", "Identity", ("save/Const", "^save/SaveV2"), attrs={"T": dtypes.string})
    )
    restored = tuple(text.format("RestoreV2") for text in about)
    nodes.append(NodeDef("save/RestoreV2", "RestoreV2", restored, attrs={"dtypes": dtypes_}))
    nodes += [_assign(i, name, dtype) for i, (name, dtype, _) in enumerate(variables)]
    nodes.append(NodeDef(RESTORE, "NoOp", tuple(f"^save/Assign_{i}" for i in range(len(names)))))
    return nodes


def _constant(name: str, value: Any) -> NodeDef:
    return NodeDef(name, "Const", attrs={"dtype": dtypes.string, "value": TensorData.of(value)})


def _read(i: int, name: str, dtype: DType) -> NodeDef:
    return NodeDef(f"save/Read_{i}", "ReadVariableOp", (name,), attrs={"dtype": dtype})


def _assign(i: int, name: str, dtype: DType) -> NodeDef:
    value = "save/RestoreV2" if i == 0 else f"save/RestoreV2:{i}"
    return NodeDef(f"save/Assign_{i}", "AssignVariableOp", (name, value), attrs={"dtype": dtype})
