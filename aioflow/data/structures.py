"""Structures of elements: nested tuples, dictionaries and named tuples, flattened to components.

As in TensorFlow, a list is a tensor and not a structure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aioflow.errors import DTypeError
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims, TensorShape, dims_of
from aioflow.ops import nest
from aioflow.ops.function.tracing import TensorSpec


def is_structure(value: object) -> bool:
    """Return whether a value is a container of components."""
    return isinstance(value, tuple | Mapping) and not isinstance(value, TensorShape)


def flatten(structure: object) -> list[Any]:
    """Return the components in order; keys of a mapping are sorted."""
    if not is_structure(structure):
        return [structure]
    return [leaf for item in nest.items(structure) for leaf in flatten(item)]


def pack(structure: object, leaves: Sequence[object]) -> Any:
    """Return the components in a structure like `structure`."""
    left = iter(leaves)
    return map_leaves(lambda _: next(left), structure)


def map_leaves(function: Callable[[Any], object], structure: Any) -> Any:
    """Return a structure of the results of `function` for each component, in order."""
    if not is_structure(structure):
        return function(structure)
    made = [map_leaves(function, item) for item in nest.items(structure)]
    kind: Any = type(structure)
    if isinstance(structure, Mapping):
        by_key = dict(zip(sorted(structure), made, strict=True))
        return kind((key, by_key[key]) for key in structure)
    return kind(*made) if hasattr(kind, "_fields") else kind(made)


def same_leaves(structure: object, value: object, what: str) -> list[Any]:
    """Return the components of a value that is nested like `structure`; leaves of `structure` end the descent.

    Raises:
        DTypeError: it is nested in another way.
    """
    if not is_structure(structure):
        return [value]
    same = type(structure) is type(value) or (isinstance(structure, tuple) and isinstance(value, tuple | list))
    if same and isinstance(structure, Mapping) and isinstance(value, Mapping):
        same = set(structure) == set(value)
    if not same or len(structure) != len(value):  # type: ignore[arg-type]  # a container has a length
        raise DTypeError(what, expected=nest.describe(map_leaves(str, structure)), actual=repr(value)[:80])
    pairs = zip(nest.items(structure), nest.items(value), strict=True)
    return [leaf for inner, item in pairs for leaf in same_leaves(inner, item, what)]


def spec_of(tensor: Tensor) -> TensorSpec:
    """Return the specification of a component."""
    return TensorSpec(tensor.dims, tensor.dtype)


def specs(types: Any, shapes: Any, what: str) -> Any:
    """Return a structure of specifications from one of dtypes, and one of shapes or None.

    Raises:
        DTypeError: the structures differ.
    """
    if isinstance(types, list):
        types = tuple(types)
    dtypes = [as_dtype(each) for each in flatten(types)]
    dims: list[Dims] = [None] * len(dtypes)
    if shapes is not None:
        dims = [dims_of(each) for each in same_leaves(types, shapes, f"output_shapes of {what} are nested differently")]
    return pack(types, [TensorSpec(d, t) for d, t in zip(dims, dtypes, strict=True)])


def types_of(structure: Any) -> tuple[DType, ...]:
    """Return the dtypes of the components."""
    return tuple(spec.dtype for spec in flatten(structure))


def dims_in(structure: Any) -> tuple[Dims, ...]:
    """Return the static shapes of the components."""
    return tuple(spec.shape.raw for spec in flatten(structure))
