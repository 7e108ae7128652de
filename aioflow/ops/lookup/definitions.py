"""Definitions of the lookup table ops. Their builders are in `initializers`, `mutable` and `tables`."""

from __future__ import annotations

from typing import Final

from aioflow.errors import DTypeError
from aioflow.graph.dtypes import DType
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, is_compatible, merge_dims
from aioflow.graph.traits import Effect, files, handle, state_change, state_read
from aioflow.ops import rows
from aioflow.ops.core import origin, scalar

_WHY: Final = "its table is in the host's memory"
_TYPES: Final = ["key_dtype: type", "value_dtype: type"]
_NAMES: Final = ["container: string = ''", "shared_name: string = ''", "use_node_name_sharing: bool = False"]
_DENSE: Final = ["value_shape: shape = []", "initial_num_buckets: int = 131072", "max_load_factor: float = 0.8"]
_STATIC: Final = ("HashTableV2", "AnonymousHashTable")
_OF_SCALARS: Final = ("MutableHashTableV2", "AnonymousMutableHashTable")
_OF_TENSORS: Final = ("MutableHashTableOfTensorsV2", "AnonymousMutableHashTableOfTensors")
_OF_KEYS: Final = ("MutableDenseHashTableV2", "AnonymousMutableDenseHashTable")


def table_node(handle: Tensor) -> Operation | None:
    """Return the node that creates the table behind a handle; None if it is not a table, or not known."""
    op = origin(handle).op
    return op if op.type in (*_STATIC, *_OF_SCALARS, *_OF_TENSORS, *_OF_KEYS) else None


def _mutable(ctx: ShapeContext, keys: str, values: str) -> Operation | None:
    """Return the node of a mutable table, after checking its dtypes.

    None for a static table: nothing about its values is inferred while the graph is built.
    """
    op = table_node(ctx.tensors[0])
    if op is None or op.type in _STATIC:
        return None
    for attr, name in (("key_dtype", keys), ("value_dtype", values)):
        have: DType = op.attrs[attr]
        if ctx.attrs[name] is not have:
            raise DTypeError(f"table {op.name} has other {attr}s", expected=have.name, actual=ctx.attrs[name].name)
    return op


def _found(ctx: ShapeContext) -> Dims:
    op, keys = _mutable(ctx, "Tin", "Tout"), ctx.dims("keys")
    if op is None or keys is None:
        return None
    value: Dims = op.attrs.get("value_shape", ())
    # Only dense tables have inputs; the first is a key, which may be a vector.
    key: Dims = op.inputs[0].dims if op.inputs else ()
    if value is None or key is None:
        return None
    # `merge_dims` is called for its error message alone.
    if not is_compatible(keys[len(keys) - len(key) :], key):
        merge_dims(keys[len(keys) - len(key) :], key)
    return (*keys[: len(keys) - len(key)], *value)


def _initialized(ctx: ShapeContext) -> list[Dims]:
    merge_dims(ctx.require_rank("keys", 1), ctx.dims("values"))
    return []


def _imported(ctx: ShapeContext) -> list[Dims]:
    keys, values = ctx.require_rank("keys", 1), ctx.require_rank("values", 1, -1)
    if keys is not None and values is not None:
        merge_dims(keys, values[:1])
    return []


def _removed(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("keys", 1, -1)
    return []


def _from_file(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("filename", 0)
    return []


def _exported(ctx: ShapeContext) -> list[Dims]:
    _mutable(ctx, "Tkeys", "Tvalues")
    return [None, None]


_SHARED: Final = {
    "HashTableV2": ("", _TYPES),
    "MutableHashTableV2": ("", _TYPES),
    "MutableHashTableOfTensorsV2": ("", [*_TYPES, "value_shape: shape = []"]),
    "MutableDenseHashTableV2": ("empty_key: key_dtype, deleted_key: key_dtype", [*_TYPES, *_DENSE]),
}
for _name, (_inputs, _attrs) in _SHARED.items():
    define_op(
        _name,
        _inputs,
        "table_handle: resource",
        [*_NAMES, *_attrs],
        shape=scalar,
        traits=handle(on_host=_WHY, is_numeric=False),
    )
    define_op(
        f"Anonymous{_name.removesuffix('V2')}",
        _inputs,
        "table_handle: resource",
        _attrs,
        shape=scalar,
        traits=handle(on_host=_WHY, is_numeric=False),
    )


def is_kept_table(op: str) -> bool:
    """Return whether nodes of this op create tables that outlive a step."""
    return op in _SHARED


def is_mutable_table(op: str) -> bool:
    """Return whether nodes of this op create tables without an initializer.

    Their entries come from steps or checkpoints.
    """
    return is_kept_table(op) and op not in _STATIC


define_op(
    "InitializeTableV2",
    "table_handle: resource, keys: Tkey, values: Tval",
    "",
    ["Tkey: type", "Tval: type"],
    shape=_initialized,
    traits=state_change(on_host=_WHY, is_numeric=False),
)
define_op(
    "InitializeTableFromTextFileV2",
    "table_handle: resource, filename: string",
    "",
    [
        "key_index: int >= -2",
        "value_index: int >= -2",
        "vocab_size: int >= -1 = -1",
        "delimiter: string = '\\t'",
        "offset: int = 0",
    ],
    shape=_from_file,
    traits=files(effect=Effect.CHANGES),
)
define_op(
    "LookupTableFindV2",
    "table_handle: resource, keys: Tin, default_value: Tout",
    "values: Tout",
    ["Tin: type", "Tout: type"],
    shape=_found,
    rows=rows.looked_up,
    traits=state_read(on_host=_WHY, is_numeric=False),
)
define_op(
    "LookupTableInsertV2",
    "table_handle: resource, keys: Tin, values: Tout",
    "",
    ["Tin: type", "Tout: type"],
    traits=state_change(on_host=_WHY, is_numeric=False),
)
define_op(
    "LookupTableRemoveV2",
    "table_handle: resource, keys: Tin",
    "",
    ["Tin: type"],
    shape=_removed,
    traits=state_change(on_host=_WHY, is_numeric=False),
)
define_op(
    "LookupTableSizeV2",
    "table_handle: resource",
    "size: int64",
    shape=scalar,
    traits=state_read(on_host=_WHY, is_numeric=False),
)
define_op(
    "LookupTableExportV2",
    "table_handle: resource",
    "keys: Tkeys, values: Tvalues",
    ["Tkeys: type", "Tvalues: type"],
    shape=_exported,
    traits=state_read(on_host=_WHY, is_numeric=False),
)
define_op(
    "LookupTableImportV2",
    "table_handle: resource, keys: Tin, values: Tout",
    "",
    ["Tin: type", "Tout: type"],
    shape=_imported,
    traits=state_change(on_host=_WHY, is_numeric=False),
)
not_differentiable(
    *(*_STATIC, *_OF_SCALARS, *_OF_TENSORS, *_OF_KEYS),
    "InitializeTableV2",
    "InitializeTableFromTextFileV2",
    "LookupTableFindV2",
    "LookupTableInsertV2",
    "LookupTableRemoveV2",
    "LookupTableSizeV2",
    "LookupTableExportV2",
    "LookupTableImportV2",
)
