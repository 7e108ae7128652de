"""Ops of datasets and iterators, and the position of an iterator as a checkpoint saves it.

A dataset node describes a stage of a pipeline; its value is a handle, which nothing but other dataset nodes and
iterators read. The elements exist only when an iterator pulls them.
"""

from __future__ import annotations

from typing import Final

from aioflow.graph import dtypes
from aioflow.graph.calls import expander
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import define_op
from aioflow.graph.traits import Effect, handle, python_function, waiting
from aioflow.ops.apply import make, make_op
from aioflow.ops.core import scalar
from aioflow.ops.function.library import find_function
from aioflow.ops.lookup.mutable import ExportedTable, SavedColumn

ELEMENT: Final = ["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"]
_NAMED: Final = ["container: string = ''", "shared_name: string = ''"]
_STAGE: Final = ["kind: string", "N: int >= 0", "Targs: list(type)", *ELEMENT]
_HANDLE: Final = handle(on_host="stages of input pipelines run on the host", is_numeric=False)
_INPUTS: Final = "datasets: N*resource, args: list:Targs"

define_op("AioflowDataset", _INPUTS, "handle: resource", _STAGE, shape=scalar, traits=_HANDLE)
define_op(
    "AioflowFunctionDataset",
    f"{_INPUTS}, captured: list:Tcaptured",
    "handle: resource",
    [*_STAGE, "f: func", "Tcaptured: list(type)"],
    shape=scalar,
    traits=_HANDLE,
)
define_op(
    "AioflowPythonDataset",
    _INPUTS,
    "handle: resource",
    [*_STAGE, "token: string"],
    shape=scalar,
    traits=python_function(effect=Effect.KEEPS),
)
define_op(
    "IteratorV2",
    "",
    "handle: resource",
    ["shared_name: string", "container: string", *ELEMENT],
    shape=scalar,
    traits=_HANDLE,
)
define_op(
    "AioflowOneShotIterator",
    "captured: list:Tcaptured",
    "handle: resource",
    ["dataset_factory: func", "Tcaptured: list(type)", *ELEMENT, *_NAMED],
    shape=scalar,
    traits=_HANDLE,
)
define_op("AioflowMakeIterator", "dataset: resource, iterator: resource", "", traits=waiting())
define_op(
    "IteratorGetNext",
    "iterator: resource",
    "components: list:output_types",
    ELEMENT,
    shape=lambda ctx: list(ctx.attrs["output_shapes"]),
    traits=waiting(tells_step=True, takes_away=True),
)
define_op(
    "IteratorToStringHandle", "resource_handle: resource", "string_handle: string", shape=scalar, traits=waiting()
)
define_op(
    "IteratorFromStringHandleV2",
    "string_handle: string",
    "resource_handle: resource",
    ["output_types: list(type) = []", "output_shapes: list(shape) = []"],
    shape=scalar,
    traits=_HANDLE,
)
define_op("AioflowIteratorPosition", "iterator: resource", "position: string", shape=scalar, traits=waiting())
define_op("AioflowSeekIterator", "iterator: resource, position: string", "", traits=waiting())
not_differentiable(
    "AioflowDataset", "AioflowFunctionDataset", "AioflowPythonDataset", "IteratorV2", "AioflowOneShotIterator",
    "AioflowMakeIterator", "IteratorGetNext", "IteratorToStringHandle", "IteratorFromStringHandleV2",
    "AioflowIteratorPosition", "AioflowSeekIterator",
)  # fmt: skip


@expander("AioflowFunctionDataset")
def _load(op: Operation) -> None:
    """Ensure that the function is loaded. It is not expanded: an iterator calls it for each element."""
    find_function(op.graph, op.attrs["f"].name)


@expander("AioflowOneShotIterator")
def _load_factory(op: Operation) -> None:
    """Ensure that the function that makes the dataset is loaded."""
    find_function(op.graph, op.attrs["dataset_factory"].name)


class IteratorPosition(ExportedTable):
    """The position of an iterator, as a `Saver` saves it: one string.

    Args:
        handle: Handle of the iterator.
    """

    def __init__(self, handle: Tensor) -> None:
        super().__init__(handle, dtypes.string, dtypes.string)

    def columns(self, name: str) -> list[SavedColumn]:
        """Return the only column, which has the iterator's name."""
        return [_Position(self, name, 0)]

    def exported(self) -> list[Tensor]:
        """Return the position, after the element that was consumed last."""
        with self.graph.colocate_with(self.handle.op):
            return [make("AioflowIteratorPosition", self.handle)]

    def imported(self, *columns: Tensor) -> Operation:
        """Return a node that continues at a position."""
        with self.graph.colocate_with(self.handle.op):
            return make_op("AioflowSeekIterator", self.handle, *columns)


class _Position(SavedColumn):
    def __init__(self, table: ExportedTable, name: str, index: int) -> None:
        super().__init__(table, name, index)
        self.name = name
