"""Kernels of dataset and iterator nodes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, Final

from aioflow.errors import InternalError, InvalidArgumentError
from aioflow.graph.dtypes import bool_
from aioflow.graph.shapes import Dims
from aioflow.kernels.data.ahead import CoroutineMapStage, PrefetchStage
from aioflow.kernels.data.batches import BatchStage, UnbatchStage
from aioflow.kernels.data.functions import CoroutineFunction, OpFunction
from aioflow.kernels.data.iterators import IteratorResource
from aioflow.kernels.data.mapping import FilterStage, InterleaveStage, MapStage
from aioflow.kernels.data.reducing import ReduceStage
from aioflow.kernels.data.sequences import (
    CacheStage,
    ConcatenateStage,
    RangeStage,
    RepeatStage,
    ShardStage,
    SkipStage,
    SliceStage,
    TakeStage,
    TensorStage,
    ZipStage,
)
from aioflow.kernels.data.shuffles import ShuffleStage
from aioflow.kernels.data.sources import (
    AsyncIterableStage,
    FixedLengthStage,
    GeneratorStage,
    TextLineStage,
    TFRecordStage,
)
from aioflow.kernels.data.stages import DatasetValue, Path, Pipeline, Stage
from aioflow.kernels.function.py_func import ResultCheck
from aioflow.kernels.registry import Binding, KernelBody, binder, kernel
from aioflow.kernels.text import as_strings, string_values
from aioflow.memory.values import Array, Value
from aioflow.ops.function.python_functions import find_function
from aioflow.sync.background import background_of
from aioflow.sync.waiting import StepAccount


def no_stage(dataset: DatasetValue, pipeline: Pipeline, path: Path) -> Stage:
    """Raise InternalError: a node that holds a function has no elements."""
    raise InternalError(f"{dataset.name!r} has no elements")


KINDS: Final[dict[str, Callable[[DatasetValue, Pipeline, Path], Stage]]] = {
    "async_items": AsyncIterableStage,
    "batch": BatchStage,
    "cache": CacheStage,
    "concatenate": ConcatenateStage,
    "coroutine_filter": FilterStage,
    "coroutine_map": CoroutineMapStage,
    "coroutine_reduce": ReduceStage,
    "filter": FilterStage,
    "fixed_length_records": FixedLengthStage,
    "function": no_stage,  # a node that only holds a function
    "generator": GeneratorStage,
    "interleave": InterleaveStage,
    "map": MapStage,
    "padded_batch": partial(BatchStage, padded=True),
    "prefetch": PrefetchStage,
    "range": RangeStage,
    "reduce": ReduceStage,
    "repeat": RepeatStage,
    "shard": ShardStage,
    "shuffle": ShuffleStage,
    "skip": SkipStage,
    "take": TakeStage,
    "tensors": TensorStage,
    "tensor_slices": SliceStage,
    "text_lines": TextLineStage,
    "tf_records": TFRecordStage,
    "unbatch": UnbatchStage,
    "zip": ZipStage,
}


# ── datasets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _describer(binding: Binding, function: Any = None) -> Callable[..., DatasetValue]:
    attrs = binding.attrs
    make = KINDS.get(attrs["kind"])
    if make is None:
        raise InvalidArgumentError("unknown kind of dataset", expected=f"one of {sorted(KINDS)}", actual=attrs["kind"])

    def describe(datasets: Sequence[DatasetValue], args: Sequence[Array], chosen: Any = function) -> DatasetValue:
        return DatasetValue(
            binding.name, make, datasets, args, attrs["output_types"], attrs["output_shapes"], chosen, binding.folders
        )

    return describe


@binder("AioflowDataset", device="CPU", takes=DatasetValue, makes=DatasetValue, retains=True, opaque=True)
def dataset(binding: Binding) -> KernelBody:
    return _describer(binding)


@binder("AioflowPythonDataset", device="CPU", takes=DatasetValue, makes=DatasetValue, retains=True, opaque=True)
def python_dataset(binding: Binding) -> KernelBody:
    function: Any = find_function(binding.attrs["token"])
    kind = binding.attrs["kind"]
    if kind.startswith("coroutine"):
        types, shapes = binding.attrs["output_types"], binding.attrs["output_shapes"]
        check = ResultCheck([bool_], [()]) if kind == "coroutine_filter" else ResultCheck(types, shapes)
        function = CoroutineFunction(function, check)
    return _describer(binding, function)


@binder("AioflowFunctionDataset", device="CPU", takes=DatasetValue, makes=DatasetValue, retains=True, opaque=True)
def function_dataset(binding: Binding) -> KernelBody:
    describe, body = _describer(binding), binding.body

    def make(datasets: Sequence[DatasetValue], args: Sequence[Array], captured: Sequence[Value]) -> DatasetValue:
        return describe(datasets, args, OpFunction(body, captured))  # type: ignore[arg-type]  # a node with a function has a body

    return make


# ── iterators ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _finder(binding: Binding) -> Callable[[], IteratorResource]:
    attrs, resources = binding.attrs, binding.resources
    container, name = attrs["container"], attrs["shared_name"] or binding.name
    dtypes, shapes = tuple(attrs["output_types"]), tuple(attrs["output_shapes"])
    background = background_of(binding.state)

    def find() -> IteratorResource:
        found = resources.get_or_create(container, name, lambda: IteratorResource(name, dtypes, shapes, background))
        if not isinstance(found, IteratorResource):
            raise InvalidArgumentError(
                f"resource {name!r} is of a different kind", expected="Iterator", actual=type(found).__name__
            )
        found.place = f"{container}/{name}"
        return found

    return find


@binder("IteratorV2", device="CPU", makes=IteratorResource)
def iterator(binding: Binding) -> KernelBody:
    return _finder(binding)


@binder("AioflowOneShotIterator", device="CPU", makes=IteratorResource, opaque=True)
def one_shot_iterator(binding: Binding) -> KernelBody:
    find, body = _finder(binding), binding.body

    def found(captured: Sequence[Value]) -> IteratorResource:
        async def opener() -> DatasetValue:
            made: list[Any] = await OpFunction(body, captured).one(())  # type: ignore[arg-type]  # the node has a body
            found: DatasetValue = made[0]
            return found

        result = find()
        if result.opener is None:
            result.opener = opener
        return result

    return found


@kernel("AioflowMakeIterator", device="CPU", takes={"dataset": DatasetValue, "iterator": IteratorResource})
async def make_iterator(dataset: DatasetValue, iterator: IteratorResource) -> None:
    await iterator.make(dataset)


class _Turn:
    """The awaitable next element; `describe` reports what the step waits for."""

    __slots__ = ("_finish", "_iterator")

    def __init__(
        self, iterator: IteratorResource, finish: Callable[[IteratorResource], Coroutine[Any, Any, Value]]
    ) -> None:
        self._iterator = iterator
        self._finish = finish

    def describe(self) -> str:
        """Return what the step waits for."""
        return self._iterator.describe()

    def __await__(self) -> Generator[Any, None, Value]:
        return self._finish(self._iterator).__await__()


@binder("IteratorGetNext", device="CPU", is_async=True, takes=IteratorResource, takes_step=True)
def get_next(binding: Binding) -> KernelBody:
    gives_back = binding.gives_back

    def account(found: tuple[Any, Callable[[], None]], step: StepAccount) -> Value:
        element, give_back = found
        if gives_back:
            step.took(give_back)
        else:
            step.changed = True
        return element

    def take(iterator: IteratorResource, *, step: StepAccount) -> Value:
        found = iterator.try_next()
        if found is not None:
            return account(found, step)

        async def finish(iterator: IteratorResource) -> Value:
            return account(await iterator.next(), step)

        return _Turn(iterator, finish)

    return take


@kernel("IteratorToStringHandle", device="CPU", fresh=True, takes=IteratorResource)
def to_string_handle(resource_handle: IteratorResource) -> Array:
    return as_strings([resource_handle.place.encode()], ())


@binder("IteratorFromStringHandleV2", device="CPU", makes=IteratorResource)
def from_string_handle(binding: Binding) -> KernelBody:
    resources = binding.resources
    dtypes: tuple[Any, ...] = tuple(binding.attrs["output_types"])
    shapes: tuple[Dims, ...] = tuple(binding.attrs["output_shapes"])

    def find(handle: Value) -> IteratorResource:
        text: bytes = string_values(handle).item()
        container, _, name = text.decode().partition("/")
        found = resources.find(container, name)
        if not isinstance(found, IteratorResource):
            raise InvalidArgumentError(
                "the string is no handle of an iterator of this device",
                expected="the value of Iterator.string_handle()",
                actual=text.decode(),
            )
        found.check_elements(dtypes, shapes)
        return found

    return find


@kernel("AioflowIteratorPosition", device="CPU", fresh=True, takes=IteratorResource)
def position(iterator: IteratorResource) -> Array:
    return as_strings([iterator.position().encode()], ())


@kernel("AioflowSeekIterator", device="CPU", takes=IteratorResource)
async def seek(iterator: IteratorResource, position: Value) -> None:
    text: bytes = string_values(position).item()
    await iterator.seek(text.decode())
