"""`Dataset`: a description of elements and of the stages that make them. Names are TensorFlow 1's `tf.data`."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from aioflow.arguments import check_callable, check_kind
from aioflow.data import structures
from aioflow.data.building import Described, Traced, flattening, is_coroutine_function, spec_like, traced
from aioflow.data.iteration import DatasetIterator
from aioflow.data.iterator import Iterator as GraphIterator
from aioflow.data.iterator import initializable_iterator, one_shot_iterator
from aioflow.data.vectorizing import vectorized
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DTypeLike, as_dtype
from aioflow.graph.graph import Graph, Tensor
from aioflow.graph.shapes import common_dims, dims_of
from aioflow.graph.static_value import constant_value
from aioflow.ops.apply import TensorLike, convert_to_tensor
from aioflow.ops.function.tracing import TensorSpec
from aioflow.ops.io.files import matching_files
from aioflow.ops.math.random import get_seed

__all__ = ["AUTOTUNE", "Dataset", "Options"]

AUTOTUNE: Final = -1
_ALL: Final = 1 << 62


class Options:
    """Options of a dataset. They are accepted, and have no effect."""

    experimental_deterministic: bool | None = None
    deterministic: bool | None = None


class Dataset(Described):
    """Elements that a pipeline of stages makes, when an iterator pulls them.

    A dataset is a cheap description. Iterate over it with `async for` outside of a graph, or make an iterator whose
    `get_next` is a node. An element is a tensor, or a nested structure of tensors: tuples, dictionaries, named tuples.
    """

    def __aiter__(self) -> DatasetIterator:
        return DatasetIterator(self)

    def __iter__(self) -> Iterator[Any]:
        raise DTypeError("a dataset is asynchronous", expected="`async for element in dataset`", actual="`for`")

    # -- sources ------------------------------------------------------------------------------------------------------

    @staticmethod
    def from_tensors(tensors: Any, name: str | None = None) -> Dataset:
        """Return a dataset of one element: `tensors`."""
        values, spec = _components(tensors)
        return Dataset("tensors", spec, args=values, name=name)

    @staticmethod
    def from_tensor_slices(tensors: Any, name: str | None = None) -> Dataset:
        """Return a dataset of the slices of the tensors along their first axis.

        Raises:
            InvalidArgumentError: a tensor is a scalar, or the first dimensions differ.
        """
        values, spec = _components(tensors)
        sizes: set[int] = set()
        for leaf in structures.flatten(spec):
            if leaf.shape.raw == ():
                raise InvalidArgumentError("a scalar has no slices", expected="rank >= 1", actual="()")
            sizes |= set() if leaf.shape.raw is None or leaf.shape.raw[0] is None else {leaf.shape.raw[0]}
        if len(sizes) > 1:
            raise InvalidArgumentError("the first dimensions differ", expected="equal", actual=sorted(sizes))
        rows = structures.map_leaves(lambda s: spec_like(s, None if s.shape.raw is None else s.shape.raw[1:]), spec)
        return Dataset("tensor_slices", rows, args=values, name=name)

    @staticmethod
    def from_generator(
        generator: Callable[..., Iterable[Any] | AsyncIterable[Any]] | AsyncIterable[Any],
        output_types: Any = None,
        output_shapes: Any = None,
        args: Sequence[TensorLike] | None = None,
        output_signature: Any = None,
        name: str | None = None,
    ) -> Dataset:
        """Return a dataset of the items of a generator, or of an async iterable.

        Args:
            generator: A function that returns an iterable, which may block: it runs in a thread. Or an async generator
                function, or an async iterable, which runs on the event loop.
            output_types: Structure of dtypes.
            output_shapes: Structure of static shapes, or None.
            args: Tensors whose values are passed to the function.
            output_signature: Structure of `TensorSpec`, in place of the types and shapes.
            name: Name of the node.
        """
        if output_signature is not None:
            spec = output_signature
        elif output_types is None:
            raise DTypeError(
                "from_generator needs a signature", expected="output_types or output_signature", actual=None
            )
        else:
            spec = structures.specs(output_types, output_shapes, "from_generator")
        is_async = isinstance(generator, AsyncIterable) or inspect.isasyncgenfunction(generator)
        if not is_async:
            check_callable(generator, "the generator")
        python: Any = _async_items(generator, spec) if is_async else _items(generator, spec)
        return Dataset(
            "async_items" if is_async else "generator", spec, args=list(args or ()), python=python, name=name
        )

    @staticmethod
    def range(*args: TensorLike, output_type: DTypeLike = dtypes.int64, name: str | None = None) -> Dataset:
        """Return a dataset of integers: `range(stop)`, `range(start, stop)`, `range(start, stop, step)`."""
        if not 1 <= len(args) <= 3:
            raise DTypeError("wrong number of arguments of Dataset.range", expected="1 to 3", actual=len(args))
        start, stop, step = (0, args[0], 1) if len(args) == 1 else (args[0], args[1], args[2] if len(args) == 3 else 1)
        spec = TensorSpec((), as_dtype(output_type))
        return Dataset("range", spec, args=[whole(start), whole(stop), whole(step)], name=name)

    @staticmethod
    def zip(*args: Any, datasets: Any = None, name: str | None = None) -> Dataset:
        """Return a dataset with an element of each dataset in a structure like that of the datasets."""
        structure: Any = datasets if datasets is not None else args[0] if len(args) == 1 else args
        inputs = structures.flatten(structure)
        for each in inputs:
            check_kind(each, Dataset, "an argument of Dataset.zip", "datasets")
        spec = structures.map_leaves(lambda each: each.element_spec, structure)
        return Dataset("zip", spec, inputs, name=name)

    @staticmethod
    def list_files(
        file_pattern: TensorLike, shuffle: bool | None = None, seed: int | None = None, name: str | None = None
    ) -> Dataset:
        """Return a dataset of the names of the files that match a pattern or patterns; in random order by default."""
        found = Dataset(
            "tensor_slices", TensorSpec((), dtypes.string), args=lambda: [_matching(file_pattern)], name=name
        )
        return found.shuffle(_ALL, seed) if shuffle is None or shuffle else found

    # -- transformations of the sequence ------------------------------------------------------------------------------

    def _like(self, kind: str, *args: TensorLike, name: str | None = None) -> Dataset:
        return Dataset(kind, self.element_spec, [self], args, name=name)

    def concatenate(self, dataset: Dataset, name: str | None = None) -> Dataset:
        """Return a dataset of the elements of this one, and then those of another.

        Raises:
            DTypeError: its elements have other dtypes or another structure.
        """
        if structures.types_of(dataset.element_spec) != structures.types_of(self.element_spec):
            raise DTypeError(
                "the datasets have different types", expected=self.output_types, actual=dataset.output_types
            )
        others = structures.same_leaves(self.element_spec, dataset.element_spec, "the datasets differ in structure")
        mine = structures.flatten(self.element_spec)
        merged = [spec_like(a, common_dims(a.shape.raw, b.shape.raw)) for a, b in zip(mine, others, strict=True)]
        return Dataset("concatenate", structures.pack(self.element_spec, merged), [self, dataset], name=name)

    def repeat(self, count: TensorLike | None = None, name: str | None = None) -> Dataset:
        """Return a dataset that repeats this one `count` times; without end by default, or if it is negative."""
        return self._like("repeat", whole(-1 if count is None else count), name=name)

    def take(self, count: TensorLike, name: str | None = None) -> Dataset:
        """Return a dataset of the first elements; all if the count is negative."""
        return self._like("take", whole(count), name=name)

    def skip(self, count: TensorLike, name: str | None = None) -> Dataset:
        """Return a dataset without the first elements; empty if the count is negative."""
        return self._like("skip", whole(count), name=name)

    def shard(self, num_shards: TensorLike, index: TensorLike, name: str | None = None) -> Dataset:
        """Return a dataset of every `num_shards`-th element, from element `index` on."""
        return self._like("shard", whole(num_shards), whole(index), name=name)

    def shuffle(
        self,
        buffer_size: TensorLike,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Return a dataset whose elements are drawn at random from a buffer of `buffer_size` elements.

        With a seed, the order is TensorFlow's. Each repetition has another order, unless `reshuffle_each_iteration` is
        False.
        """
        seeds = [number or 0 for number in get_seed(seed)]
        again = reshuffle_each_iteration is None or reshuffle_each_iteration
        return self._like("shuffle", whole(buffer_size), *map(whole, seeds), constant_array(again), name=name)

    def cache(self, filename: TensorLike = "", name: str | None = None) -> Dataset:
        """Return a dataset that keeps the elements in memory in the first pass, and reads them there in later ones.

        Raises:
            InvalidArgumentError: `filename` is given; elements are not kept in files.
        """
        if not isinstance(filename, str) or filename:
            raise InvalidArgumentError("a dataset is cached in memory only", expected="no file name", actual=filename)
        return self._like("cache", name=name)

    def prefetch(self, buffer_size: TensorLike, name: str | None = None) -> Dataset:
        """Return a dataset that makes up to `buffer_size` elements before they are requested."""
        return self._like("prefetch", whole(buffer_size), name=name)

    def enumerate(self, start: TensorLike = 0, name: str | None = None) -> Dataset:
        """Return a dataset of pairs: the number of the element, and the element."""
        return Dataset.zip(Dataset.range(start, np.iinfo(np.int64).max), self, name=name)

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """Return `transformation_func(self)`."""
        return transformation_func(self)

    def options(self) -> Options:
        """Return the options, which have no effect."""
        return Options()

    def with_options(self, options: Options, name: str | None = None) -> Dataset:
        """Return the dataset itself: options have no effect."""
        return self

    # -- batches ------------------------------------------------------------------------------------------------------

    def batch(
        self,
        batch_size: TensorLike,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Return a dataset of consecutive elements, stacked along a new first axis.

        Args:
            batch_size: Number of elements.
            drop_remainder: Whether to drop the last batch if it is smaller.
            num_parallel_calls: Ignored.
            deterministic: Ignored.
            name: Name of the node.
        """
        size = _batch_dim(batch_size, drop_remainder)
        spec = structures.map_leaves(
            lambda s: spec_like(s, None if s.shape.raw is None else (size, *s.shape.raw)), self.element_spec
        )
        return Dataset("batch", spec, [self], [whole(batch_size), constant_array(drop_remainder)], name=name)

    def padded_batch(
        self,
        batch_size: TensorLike,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Return a dataset of consecutive elements, padded to a common shape and stacked.

        Args:
            batch_size: Number of elements.
            padded_shapes: Structure of shapes; the size of an unknown dimension is the largest of the batch. By default
                the static shapes of the components.
            padding_values: Structure of scalars; by default 0, or the empty string.
            drop_remainder: Whether to drop the last batch if it is smaller.
            name: Name of the node.
        """
        leaves = structures.flatten(self.element_spec)
        given: list[Any] = [leaf.shape for leaf in leaves]
        if padded_shapes is not None:
            given = structures.same_leaves(self.element_spec, padded_shapes, "padded_shapes are nested differently")
        shapes = [dims_of(each) for each in given]
        values: list[Any] = [None] * len(leaves)
        if padding_values is not None and not (
            structures.is_structure(self.element_spec) and np.isscalar(padding_values)
        ):
            values = structures.same_leaves(self.element_spec, padding_values, "padding_values are nested differently")
        elif padding_values is not None:
            values = [padding_values] * len(leaves)
        sizes, fills, size = [], [], _batch_dim(batch_size, drop_remainder)
        for leaf, dims, value in zip(leaves, shapes, values, strict=True):
            if dims is None:
                raise InvalidArgumentError("a padded shape needs a rank", expected="a shape", actual=None)
            sizes.append(np.array([-1 if d is None else d for d in dims], np.int64))
            fills.append(convert_to_tensor(_zero(leaf.dtype) if value is None else value, leaf.dtype))
        batched = [spec_like(leaf, (size, *(dims or ()))) for leaf, dims in zip(leaves, shapes, strict=True)]
        args = [whole(batch_size), constant_array(drop_remainder), *sizes, *fills]
        return Dataset("padded_batch", structures.pack(self.element_spec, batched), [self], args, name=name)

    def unbatch(self, name: str | None = None) -> Dataset:
        """Return a dataset of the slices of each element along the first axis."""
        spec = structures.map_leaves(
            lambda s: spec_like(s, None if s.shape.raw is None else s.shape.raw[1:]), self.element_spec
        )
        return Dataset("unbatch", spec, [self], name=name)

    # -- functions of elements ----------------------------------------------------------------------------------------

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        synchronous: bool | None = None,
        use_unbounded_threadpool: bool = False,
        name: str | None = None,
        *,
        output_types: Any = None,
        output_shapes: Any = None,
    ) -> Dataset:
        """Return a dataset of `map_func(element)`, in order.

        Args:
            map_func: A function made of ops, which is traced once; or a coroutine function, which gets NumPy values on
                the event loop. The items of a tuple are its arguments.
            num_parallel_calls: Number of calls that run at the same time; results are in order.
            deterministic: Ignored; accepted for compatibility, as the next two are.
            synchronous: Ignored.
            use_unbounded_threadpool: Ignored.
            name: Name of the node.
            output_types: Structure of dtypes of the results of a coroutine function.
            output_shapes: Structure of their static shapes, or None.

        Raises:
            DTypeError: a coroutine function has no `output_types`.
        """
        check_callable(map_func, "the function of map")
        calls = whole(1 if num_parallel_calls is None else num_parallel_calls)
        if not is_coroutine_function(map_func):
            made = traced(map_func, [self.element_spec], "map")
            if isinstance(made.structure, Dataset):
                raise DTypeError("the function of map returns a dataset", expected="flat_map", actual="map")
            rows = vectorized(made)
            inputs: list[Described] = [self]
            if rows is not None:
                inputs.append(Described("function", made.structure, traced=Traced(rows, made.structure)))
            return Dataset("map", made.structure, inputs, [calls], traced=made, name=name)
        if output_types is None:
            raise DTypeError("a coroutine function needs output_types", expected="output_types=…", actual=None)
        spec = structures.specs(output_types, output_shapes, "map")
        python = flattening(map_func, [self.element_spec], spec, "map")
        return Dataset("coroutine_map", spec, [self], [calls], python=python, name=name)

    def filter(self, predicate: Callable[..., Any], name: str | None = None) -> Dataset:
        """Return a dataset of the elements for which a function made of ops, or a coroutine function, is true."""
        check_callable(predicate, "the predicate of filter")
        if is_coroutine_function(predicate):
            python = flattening(predicate, [self.element_spec], TensorSpec((), dtypes.bool_), "filter")
            return Dataset("coroutine_filter", self.element_spec, [self], python=python, name=name)
        made = traced(predicate, [self.element_spec], "filter")
        spec = made.structure
        if not isinstance(spec, TensorSpec) or spec.dtype is not dtypes.bool_ or spec.shape.raw not in ((), None):
            raise DTypeError("the predicate of filter must return a scalar bool", expected="bool()", actual=repr(spec))
        return Dataset("filter", self.element_spec, [self], traced=made, name=name)

    def flat_map(self, map_func: Callable[..., Dataset], name: str | None = None) -> Dataset:
        """Return a dataset of the elements of the datasets `map_func(element)`, one dataset after the other."""
        return self.interleave(map_func, 1, 1, name=name)

    def interleave(
        self,
        map_func: Callable[..., Dataset],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Return a dataset of the elements of the datasets `map_func(element)`, in turn.

        Args:
            map_func: A function made of ops that returns a dataset.
            cycle_length: Number of datasets that are read in turn; 4 by default.
            block_length: Number of consecutive elements of one dataset; 1 by default.
            num_parallel_calls: Ignored.
            deterministic: Ignored.
            name: Name of the node.
        """
        made = traced(map_func, [self.element_spec], "interleave")
        if not isinstance(made.structure, Dataset):
            raise DTypeError("the function must return a dataset", expected="a Dataset", actual=repr(made.structure))
        args = [whole(-1 if cycle_length is None else cycle_length), whole(1 if block_length is None else block_length)]
        return Dataset("interleave", made.structure.element_spec, [self], args, traced=made, name=name)

    async def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any], name: str | None = None) -> Any:
        """Return the state after `reduce_func(state, element)` for each element.

        The function is made of ops, or a coroutine function. Dtypes and structure of the state stay the same.
        """
        values, spec = _components(initial_state)
        if is_coroutine_function(reduce_func):
            python = flattening(reduce_func, [spec, self.element_spec], spec, "reduce")
            reduced = Dataset("coroutine_reduce", spec, [self], values, python=python, name=name)
        else:
            made = traced(reduce_func, [spec, self.element_spec], "reduce", unpacks=False)
            if structures.types_of(made.structure) != structures.types_of(spec):
                raise DTypeError("reduce_func changes the dtypes", expected=spec, actual=made.structure)
            reduced = Dataset("reduce", spec, [self], values, traced=made, name=name)
        async for state in reduced:
            return state
        return None

    # -- iterators ----------------------------------------------------------------------------------------------------

    def make_one_shot_iterator(self) -> GraphIterator:
        """Return an iterator that needs no initializer: it begins with its first step."""
        return one_shot_iterator(self)

    def make_initializable_iterator(self, shared_name: str | None = None) -> GraphIterator:
        """Return an iterator that begins when its `initializer` is run, and again each time."""
        return initializable_iterator(self, shared_name)


# ── arguments ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _components(tensors: Any) -> tuple[list[Any], Any]:
    """Return the components of a structure of values, and its structure of specifications.

    Values that are no tensors stay arrays, so that they become constants in whatever graph reads them.
    """
    values = [leaf if isinstance(leaf, Tensor) else _array(leaf) for leaf in structures.flatten(tensors)]
    specs = [
        structures.spec_of(value) if isinstance(value, Tensor) else TensorSpec(np.shape(value), _dtype_of(value))
        for value in values
    ]
    return values, structures.pack(tensors, specs)


def _array(value: Any) -> Any:
    """Return a value as a tensor converts it; a tensor if it is symbolic."""
    if hasattr(value, "handle") or (isinstance(value, list | tuple) and any(isinstance(v, Tensor) for v in value)):
        return convert_to_tensor(value)
    with Graph().as_default():
        found = constant_value(convert_to_tensor(value))
    return convert_to_tensor(value) if found is None else found


def _dtype_of(array: Any) -> dtypes.DType:
    return dtypes.string if array.dtype.hasobject else as_dtype(array.dtype)


def whole(value: Any) -> Any:
    """Return a setting as an int64 scalar."""
    return value if isinstance(value, Tensor) else np.int64(value)


def constant_array(value: Any) -> Any:
    """Return a setting as a bool."""
    return value if isinstance(value, Tensor) else np.bool_(value)


def _zero(dtype: dtypes.DType) -> Any:
    return b"" if dtype is dtypes.string else np.zeros((), dtype.np_dtype)


def _batch_dim(batch_size: Any, drop_remainder: Any) -> int | None:
    found = constant_value(batch_size) if isinstance(batch_size, Tensor) else batch_size
    drops = constant_value(drop_remainder) if isinstance(drop_remainder, Tensor) else drop_remainder
    return int(found) if drops and found is not None else None


def _matching(pattern: TensorLike) -> Tensor:
    return matching_files(pattern)


def _items(generator: Any, spec: Any) -> Callable[..., Iterator[list[Any]]]:
    def items(*args: Any) -> Iterator[list[Any]]:
        found = generator(*args)
        if isinstance(found, AsyncIterable):
            raise InvalidArgumentError(
                "the generator returned an async iterable",
                expected="an async generator function, or the async iterable itself",
                actual=type(found).__name__,
            )
        for item in found:
            yield structures.same_leaves(spec, item, "an item of the generator does not fit output_types")

    return items


def _async_items(generator: Any, spec: Any) -> Callable[..., AsyncIterator[list[Any]]]:
    async def items(*args: Any) -> AsyncIterator[list[Any]]:
        iterator = aiter(generator if isinstance(generator, AsyncIterable) else generator(*args))
        try:
            async for item in iterator:
                yield structures.same_leaves(spec, item, "an item of the iterable does not fit output_types")
        finally:
            if hasattr(iterator, "aclose"):
                await iterator.aclose()

    return items
