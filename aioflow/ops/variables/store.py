"""Variables shared by name: the table of a graph, and functions that find or make its variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any, Final

from aioflow.errors import AlreadyExistsError, DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.arrays import to_array
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.graph import Graph, GraphKeys, Tensor
from aioflow.graph.shapes import Dims, dims_of, format_dims, is_compatible, merge_dims
from aioflow.graph.tensor_like import TensorLike
from aioflow.ops.apply import make
from aioflow.ops.variables.initializers import glorot_uniform_initializer, zeros_initializer
from aioflow.ops.variables.partitioned import PartitionedVariable
from aioflow.ops.variables.partitioners import Partitioner, partitions_of
from aioflow.ops.variables.slices import PartitionInfo, SaveSliceInfo, slices_of
from aioflow.ops.variables.variable import Variable

_STORE: Final = "__variable_store"


class VariableStore:
    """The shared variables of a graph, its root variable scope, and the number of times each variable scope was opened.

    Callers hold the graph's lock, because making a variable also makes nodes.
    """

    def __init__(self) -> None:
        self.variables: dict[str, Variable] = {}
        self.partitioned: dict[str, Any] = {}  # by the name of the whole; the parts are in `variables` too
        self.opened: dict[str, int] = {}
        self.root: Any = None

    def unique_name(self, prefix: str) -> str:
        """Return `prefix`, or the first of `prefix_1`, `prefix_2`, … that has not been opened yet."""
        candidate, count = prefix, 0
        while self.opened.get(candidate, 0) > 0:
            count += 1
            candidate = f"{prefix}_{count}"
        return candidate

    def enter(self, name: str) -> None:
        """Count an opening of the variable scope `name`."""
        self.opened[name] = self.opened.get(name, 0) + 1

    def leave(self, name: str, before: Mapping[str, int]) -> None:
        """Reset the counts of the inner scopes to `before`, so that reopening this scope yields the same names."""
        for inner in self.opened:
            # All scopes are inside the root, whose name is empty.
            if not name or inner.startswith(name + "/"):
                self.opened[inner] = before.get(inner, 0)


def store_of(graph: Graph) -> VariableStore:
    # The table is in a collection of the graph, so that it lives exactly as long as the graph.
    held = graph.get_collection_ref(_STORE)
    if not held:
        with graph.lock:
            # Again, because another thread may have made the store while this one waited for the lock.
            if not held:
                held.append(VariableStore())
    store: VariableStore = held[0]
    return store


def share_or_make(graph: Graph, name: str, **settings: Any) -> Variable:
    """Return the variable with this name: a shared or a new one, according to `reuse` in the settings."""
    store = store_of(graph)
    reuse = settings.pop("reuse", None)
    dtype, dims = as_dtype(settings.pop("dtype", dtypes.float32)), dims_of(settings.pop("shape", None))
    with graph.lock:
        found: Variable | None = store.variables.get(name)
        if found is not None:
            _check_shared(name, found, reuse, None if is_value(settings.get("initializer")) else dtype, dims)
            return found
        if reuse is True:
            raise InvalidArgumentError(
                f"variable {name} does not exist, or was not made with get_variable()",
                expected="a name made before, or reuse=AUTO_REUSE in the variable scope",
                actual=name,
            )
        made = _make_variable(name, dtype, dims, settings)
        store.variables[name] = made
    _regularize(graph, made, name, settings.get("regularizer"))
    return made


def is_value(initializer: object) -> bool:
    """Return whether an initializer is a value, rather than a function that returns one."""
    return initializer is not None and not callable(initializer)


def _check_shared(name: str, found: Variable, reuse: object, dtype: DType | None, dims: Dims) -> None:
    if not reuse:
        raise AlreadyExistsError(
            f"variable {name} already exists; it was made at {found.op.source}",
            expected="another name, or reuse=True or AUTO_REUSE in the variable scope",
            actual=name,
        )
    if not is_compatible(dims, found.dims):
        raise InvalidArgumentError(
            f"shared variable {name} has a different shape", expected=format_dims(found.dims), actual=format_dims(dims)
        )
    if dtype is not None and found.dtype is not dtype:
        raise DTypeError(f"shared variable {name} has a different dtype", expected=found.dtype.name, actual=dtype.name)


def _make_variable(name: str, dtype: DType, dims: Dims, settings: Mapping[str, Any]) -> Variable:
    initializer = settings.get("initializer")
    if initializer is None:
        initializer = _default_initializer(name, dtype)
    wanted: DType | None = dtype
    expected: Dims = None
    # A class stands for an initializer with its default arguments.
    if isinstance(initializer, type):
        initializer = initializer()
    if callable(initializer):
        initial = _from_initializer(name, initializer, dims, dtype, settings.get("partition_info"))
        expected = dims if settings.get("validate_shape", True) else None
    else:
        if dims is not None:
            raise InvalidArgumentError(
                f"variable {name}: if the initializer is a value, do not specify a shape",
                expected="shape=None",
                actual=format_dims(dims),
            )
        initial, wanted = initializer, None  # keep the dtype of the value
    keys = (
        "trainable",
        "collections",
        "caching_device",
        "constraint",
        "use_resource",
        "synchronization",
        "aggregation",
    )
    passed = {key: settings[key] for key in keys if settings.get(key) is not None}
    validate = settings.get("validate_shape", True)
    return Variable(initial, name=name, dtype=wanted, shape=expected, validate_shape=validate, **passed)


def _from_initializer(
    name: str, initializer: Callable[..., TensorLike], dims: Dims, dtype: DType, part: PartitionInfo | None
) -> Callable[[], TensorLike]:
    if dims is None and not isinstance(initializer, partial) and _takes_nothing(initializer):
        return initializer
    if dims is None or None in dims:
        raise InvalidArgumentError(
            f"the shape of a new variable ({name}) must be fully defined",
            expected="known sizes",
            actual=format_dims(dims),
        )
    # Not every initializer knows of parts.
    if part is not None and _takes(initializer, "partition_info"):
        return partial(initializer, list(dims), dtype=dtype, partition_info=part)
    return partial(initializer, list(dims), dtype=dtype)


def _takes(function: Callable[..., object], argument: str) -> bool:
    try:
        return argument in signature(function).parameters
    except (TypeError, ValueError):  # a function written in C without a signature
        return False


def _takes_nothing(function: Callable[..., object]) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_argcount == 0


def _default_initializer(name: str, dtype: DType) -> Any:
    if dtype.is_floating:
        return glorot_uniform_initializer()
    if dtype.is_integer or dtype.is_bool or dtype is dtypes.string:
        return zeros_initializer()
    raise InvalidArgumentError(f"variable {name} of {dtype} needs an initializer", expected="initializer=", actual=None)


def _regularize(
    graph: Graph, variable: Variable, name: str, regularizer: Callable[[Any], Tensor | None] | None
) -> None:
    if regularizer is None:
        return
    with (
        graph.colocate_with(variable.handle.op),
        graph.name_scope(name.rstrip("/") + "/Regularizer/"),
        graph.control_dependencies(None),
    ):
        loss = regularizer(variable)
    if loss is not None:
        graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)


def value_of_dtype(initializer: Any, dtype: DTypeLike | None) -> Any:
    """Return an initializer; one that is a value is converted to `dtype`.

    Raise DTypeError for a tensor of another dtype.
    """
    if dtype is None or initializer is None or callable(initializer):
        return initializer
    found = getattr(initializer, "dtype", None)
    if not isinstance(found, DType):
        return to_array(initializer, as_dtype(dtype))
    if found is not as_dtype(dtype):
        raise DTypeError("the initializer has a different dtype", expected=as_dtype(dtype).name, actual=found.name)
    return initializer


# ── the last getter in the chain of `get_variable` ────────────────────────────────────────────────────────────────────


def share_or_make_any(
    graph: Graph, name: str, partitioner: Partitioner | None = None, **settings: Any
) -> Variable | PartitionedVariable:
    """Return the variable with this name: a shared or a new one, according to `reuse` in the settings.

    Raises:
        AlreadyExistsError: the variable exists and is not to be reused.
        InvalidArgumentError: the variable is to be reused and does not exist, or differs from the request in shape,
            dtype or parts.
    """
    store = store_of(graph)
    # Found and made under one lock, so that a name is made once.
    with graph.lock:
        cut = partitioner is not None and dims_of(settings.get("shape")) != ()  # a scalar stays whole
        # If the variable must exist, its parts are found without the partitioner, too.
        if cut or (partitioner is None and settings.get("reuse") is True and name in store.partitioned):
            return _share_or_make_parts(graph, store, name, partitioner, settings)
        if f"{name}/part_0" in store.variables:
            raise InvalidArgumentError(
                f"variable {name} exists in parts", expected="the partitioner that it was made with", actual=None
            )
        return share_or_make(graph, name, **settings)


def _share_or_make_parts(
    graph: Graph, store: VariableStore, name: str, partitioner: Partitioner | None, settings: Mapping[str, Any]
) -> PartitionedVariable:
    reuse, initializer = settings.get("reuse"), settings.get("initializer")
    dtype, dims = as_dtype(settings.get("dtype", dtypes.float32)), dims_of(settings.get("shape"))
    if is_value(initializer):
        initializer = initializer if isinstance(initializer, Tensor) else to_array(initializer, dtype)
        # A value tells the shape of the whole.
        dims = merge_dims(dims, dims_of(initializer.shape))
    if name in store.variables:
        raise InvalidArgumentError(
            f"variable {name} exists, and is not in parts", expected="partitioner=None", actual=repr(partitioner)
        )
    partitions = None if partitioner is None else partitions_of(partitioner, dims, dtype)
    found: PartitionedVariable | None = store.partitioned.get(name)
    if found is not None:
        _check_request(name, found, reuse, dtype, dims, partitions)
        return found
    if reuse is True or partitions is None:
        raise InvalidArgumentError(
            f"partitioned variable {name} does not exist, or was not made with get_variable()",
            expected="a name made before, or reuse=AUTO_REUSE in the variable scope",
            actual=name,
        )
    sizes = [size for size in dims or () if size is not None]
    parts = [
        _part(graph, f"{name}/part_{i}", SaveSliceInfo(name, sizes, *cut), {**settings, "initializer": initializer})
        for i, cut in enumerate(slices_of(sizes, partitions))
    ]
    made = PartitionedVariable(name, sizes, parts[0].dtype, parts, partitions)
    store.partitioned[name] = made
    return made


def _check_request(
    name: str, found: PartitionedVariable, reuse: object, dtype: DType, dims: Dims, partitions: list[int] | None
) -> None:
    if not reuse:
        raise AlreadyExistsError(
            f"partitioned variable {name} already exists; it was made at {next(iter(found)).op.source}",
            expected="another name, or reuse=True or AUTO_REUSE in the variable scope",
            actual=name,
        )
    if not is_compatible(dims, found.shape.raw):
        raise InvalidArgumentError(
            f"shared variable {name} has a different shape", expected=found.shape, actual=format_dims(dims)
        )
    if found.dtype is not dtype:
        raise DTypeError(f"shared variable {name} has a different dtype", expected=found.dtype.name, actual=dtype.name)
    if partitions is not None and partitions != found.partitions:
        raise InvalidArgumentError(
            f"shared variable {name} has other parts", expected=found.partitions, actual=partitions
        )


def _part(graph: Graph, name: str, info: SaveSliceInfo, settings: Mapping[str, Any]) -> Variable:
    initializer: Any = settings["initializer"]
    own: Mapping[str, object] = {"shape": info.var_shape}
    if is_value(initializer):
        # The part of a value has its own shape.
        own = {"shape": None, "initializer": _cut(graph, name, initializer, info)}
    told = PartitionInfo(info.full_shape, info.var_offset)
    part = share_or_make(graph, name, **{**settings, **own, "partition_info": told})
    part.save_slice_info = info
    return part


def _cut(graph: Graph, name: str, initializer: Any, info: SaveSliceInfo) -> Any:
    """Return the part of an initial value."""
    if not isinstance(initializer, Tensor):
        box = zip(info.var_offset, info.var_shape, strict=True)
        return initializer[tuple(slice(offset, offset + size) for offset, size in box)]
    with graph.name_scope(f"{name}/PartitionedInitializer"):
        return make("Slice", initializer, info.var_offset, info.var_shape)
