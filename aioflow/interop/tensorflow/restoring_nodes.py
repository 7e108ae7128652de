"""The nodes that save and restore the variables and tables of a SavedModel, named as by TensorFlow 1's Saver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.graphdef import NodeDef, TensorData
from aioflow.graph.shapes import Dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.memory.values import Array

SAVER_FILE: Final = "save/Const:0"
SAVED: Final = "save/control_dependency:0"
RESTORE: Final = "save/restore_all"


def names_of(i: int) -> tuple[str, str]:
    """Return the names of the nodes that read and restore the i-th variable."""
    return f"save/Read_{i}", f"save/Assign_{i}"


def restoring_nodes(
    variables: Sequence[tuple[str, DType, Dims]], tables: Sequence[tuple[str, DType, DType]] = ()
) -> list[NodeDef]:
    """Return the nodes that save and restore these variables and tables.

    The nodes include reads and assignments of each variable that are not needed to restore it: TensorFlow looks for a
    read and an initializer of each variable.

    Args:
        variables: Name of the handle, dtype and shape of each variable.
        tables: Name of the handle, dtype of the keys and dtype of the values of each table.
    """
    names = [name for name, *_ in variables] + [key for name, *_ in tables for key in table_keys(name)]
    dtypes_ = [dtype for _, dtype, _ in variables] + [dtype for _, *both in tables for dtype in both]
    about = ("save/Const", "save/{}/tensor_names", "save/{}/shape_and_slices")
    reads = [f"save/Read_{i}" for i in range(len(variables))]
    reads += [f"save/Export_{i}{port}" for i in range(len(tables)) for port in ("", ":1")]
    waits = [f"^save/Assign_{i}" for i in range(len(variables))] + [f"^save/Import_{i}" for i in range(len(tables))]
    save, restore = (tuple(text.format(kind) for text in about) for kind in ("SaveV2", "RestoreV2"))
    attrs = {"dtypes": tuple(dtypes_)}
    return [
        *_about_the_file(names),
        *(_read(i, name, dtype) for i, (name, dtype, _) in enumerate(variables)),
        *(_export(i, *table) for i, table in enumerate(tables)),
        NodeDef("save/SaveV2", "SaveV2", (*save, *reads), attrs=attrs),
        NodeDef("save/control_dependency", "Identity", ("save/Const", "^save/SaveV2"), attrs={"T": dtypes.string}),
        NodeDef("save/RestoreV2", "RestoreV2", restore, attrs=attrs),
        *(_assign(i, name, dtype) for i, (name, dtype, _) in enumerate(variables)),
        *(_import(i, len(variables) + 2 * i, *table) for i, table in enumerate(tables)),
        NodeDef(RESTORE, "NoOp", tuple(waits)),
    ]


def table_keys(name: str) -> tuple[str, str]:
    """Return the checkpoint keys of a table's keys and values, which no node or variable can have as its name."""
    return f"{name}:table-keys", f"{name}:table-values"


def _about_the_file(names: Sequence[str]) -> list[NodeDef]:
    default: Attrs = {"dtype": dtypes.string, "shape": ()}
    nodes = [
        _constant("save/filename/input", np.array(b"model", object)),
        NodeDef("save/filename", "PlaceholderWithDefault", ("save/filename/input",), attrs=default),
        NodeDef("save/Const", "PlaceholderWithDefault", ("save/filename",), attrs=default),
    ]
    for kind in ("SaveV2", "RestoreV2"):
        nodes.append(_constant(f"save/{kind}/tensor_names", np.array([name.encode() for name in names], object)))
        nodes.append(_constant(f"save/{kind}/shape_and_slices", np.array([b""] * len(names), object)))
    return nodes


def _constant(name: str, value: Array) -> NodeDef:
    return NodeDef(name, "Const", attrs={"dtype": dtypes.string, "value": TensorData.of(value)})


def _read(i: int, name: str, dtype: DType) -> NodeDef:
    return NodeDef(f"save/Read_{i}", "ReadVariableOp", (name,), attrs={"dtype": dtype})


def _assign(i: int, name: str, dtype: DType) -> NodeDef:
    value = "save/RestoreV2" if i == 0 else f"save/RestoreV2:{i}"
    return NodeDef(f"save/Assign_{i}", "AssignVariableOp", (name, value), attrs={"dtype": dtype})


def _export(i: int, name: str, key: DType, value: DType) -> NodeDef:
    return NodeDef(f"save/Export_{i}", "LookupTableExportV2", (name,), attrs={"Tkeys": key, "Tvalues": value})


def _import(i: int, port: int, name: str, key: DType, value: DType) -> NodeDef:
    restored = ["save/RestoreV2" if at == 0 else f"save/RestoreV2:{at}" for at in (port, port + 1)]
    return NodeDef(f"save/Import_{i}", "LookupTableImportV2", (name, *restored), attrs={"Tin": key, "Tout": value})
