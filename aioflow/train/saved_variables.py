"""The tensors that a `Saver` saves, and their names.

A variable is one tensor, the parts of a partitioned variable are parts of one tensor, a table is two tensors, and the
position of an iterator is one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from aioflow.arguments import check_kind, check_text
from aioflow.errors import DTypeError, InvalidArgumentError, NotFoundError
from aioflow.formats.checkpoint import CheckpointReader
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import GraphKeys, Tensor
from aioflow.graph.shapes import TensorShape
from aioflow.ops.data.definitions import IteratorPosition
from aioflow.ops.lookup.mutable import ExportedTable, MutableHashTable
from aioflow.ops.variables.partitioned import PartitionedVariable


class Saved(NamedTuple):
    """A tensor in a checkpoint and the variable that holds it.

    Attributes:
        name: Name of the tensor in the checkpoint.
        variable: The variable; or the keys, or values, of a table (`SavedColumn`).
        part: The part of the tensor that the variable holds; None for all of it.
    """

    name: str
    variable: Any
    part: Any = None

    @property
    def spec(self) -> str:
        """The part, in the form that the save and restore ops accept."""
        return "" if self.part is None else self.part.spec

    @property
    def shape(self) -> TensorShape:
        """Shape of the tensor in the checkpoint."""
        return self.variable.shape if self.part is None else TensorShape(self.part.full_shape)


def saved_variables(var_list: Sequence[object] | Mapping[str, object] | None) -> list[Saved]:
    """Return the tensors to save for variables and tables, sorted by name.

    The default is all global variables of the graph, the mutable tables not created with `checkpoint=False`, and the
    positions of iterators in the collection of saveable objects.

    In a list, a variable that is part of a larger one is saved as that part, under the name of the whole. In a
    dictionary, the parts of a PartitionedVariable or of a list are saved likewise, under the key; a single variable is
    saved whole.

    Raises:
        InvalidArgumentError: two have the same name, or a list under one name has parts of several variables.
        DTypeError: an item is not a variable, or not a part of one.
    """
    if var_list is None:
        graph = default_graph()
        kinds = (MutableHashTable, IteratorPosition)
        tables = [t for t in graph.get_collection(GraphKeys.SAVEABLE_OBJECTS) if isinstance(t, kinds)]
        var_list = [*graph.get_collection(GraphKeys.GLOBAL_VARIABLES), *tables]
    if isinstance(var_list, Mapping):
        for name in var_list:
            check_text(name, "the name of a variable in a checkpoint")
        found = [saved for name, value in sorted(var_list.items()) for saved in _named(name, value)]
    else:
        check_kind(var_list, Iterable, "the variables to save", "a list, or a dictionary by name")
        flat = [v for value in var_list for v in (value if isinstance(value, PartitionedVariable) else [value])]
        found = sorted((saved for variable in flat for saved in _all(variable)), key=_order)
    _check_names(found)
    return found


def _all(value: Any) -> list[Saved]:
    if isinstance(value, MutableHashTable):
        return _columns(value.saved_name, value.saved)
    if isinstance(value, IteratorPosition):
        return _columns(value.handle.op.name, value)
    return [_listed(value)]


def _columns(name: str, table: ExportedTable) -> list[Saved]:
    return [Saved(column.name, column) for column in table.columns(name)]


def _listed(value: Any) -> Saved:
    # A part of a partitioned variable knows the whole that it belongs to.
    part = getattr(_variable(value), "save_slice_info", None)
    return Saved(value.handle.op.name if part is None else part.full_name, value, part)


def _named(name: str, value: Any) -> list[Saved]:
    if isinstance(value, MutableHashTable | ExportedTable):
        return _columns(name, value.saved if isinstance(value, MutableHashTable) else value)
    if not isinstance(value, PartitionedVariable | list | tuple):
        return [Saved(name, _variable(value))]
    parts = sorted((_listed(variable)._replace(name=name) for variable in value), key=_order)
    whole = next((saved.variable for saved in parts if saved.part is None), None)
    if whole is not None:
        raise DTypeError(
            f"{whole.name} is not a partition of a variable", expected="partitions of one variable", actual=repr(whole)
        )
    if len({saved.part.full_name for saved in parts}) > 1:
        raise InvalidArgumentError(
            f"the parts saved as {name!r} belong to several variables",
            expected="the parts of one variable",
            actual=[saved.variable.name for saved in parts],
        )
    return parts


def _order(saved: Saved) -> tuple[str, list[int]]:
    # Parts in the order of their place in the whole.
    return saved.name, [] if saved.part is None else saved.part.var_offset


def _check_names(found: Sequence[Saved]) -> None:
    seen: dict[str, Saved] = {}
    for saved in found:
        other = seen.setdefault(saved.name, saved)
        # Only the parts of one tensor share a name.
        if other is not saved and (other.part is None or saved.part is None or other.shape != saved.shape):
            raise InvalidArgumentError(
                f"two variables are saved as {saved.name!r}", expected="distinct names", actual=saved.name
            )


def _variable(value: Any) -> Any:
    if isinstance(value, Tensor):  # the handle, as found by the variable's name
        found = value.graph.variable_of(value)
        value = value if found is None else found
    if not hasattr(value, "handle"):
        raise DTypeError(
            "only variables, mutable tables and positions of iterators can be saved",
            expected="a Variable, a MutableHashTable, or the result of make_saveable_from_iterator",
            actual=repr(value),
        )
    return value


def check_saved(path: str, saved: Sequence[Saved], reshape: bool) -> None:
    """Check that a checkpoint has the names, dtypes and shapes to be restored. Blocks on the file.

    Args:
        path: Prefix of the checkpoint.
        saved: The tensors to restore.
        reshape: Accept another shape with the same number of elements.

    Raises:
        NotFoundError: the checkpoint lacks a variable.
        InvalidArgumentError: a shape differs.
        DTypeError: a dtype differs.
    """
    reader = CheckpointReader(path)
    # All missing names in one error.
    missing = sorted({name for name, *_ in saved if name not in reader})
    if missing:
        raise NotFoundError(
            f"checkpoint {path} lacks {', '.join(missing)}", expected=f"one of {reader.names()}", actual=missing
        )
    for each in saved:
        name, dtype, shape = each.name, each.variable.dtype, reader.shape(each.name)
        if reader.dtype(name) is not dtype:
            raise DTypeError(
                f"variable {name} has a different dtype than in checkpoint {path}",
                expected=dtype.name,
                actual=reader.dtype(name).name,
            )
        # A part cannot be reshaped: its place in the whole depends on the shape.
        fits = reshape and each.part is None and each.shape.num_elements() == math.prod(shape)
        if not fits and not each.shape.is_compatible_with(shape):
            raise InvalidArgumentError(
                f"variable {name} has a different shape than in checkpoint {path}", expected=each.shape, actual=shape
            )
