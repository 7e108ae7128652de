"""Nested structures of tensors: lists, tuples, named tuples and mappings.

The keys of a mapping are sorted. A composite tensor counts as nested: loops carry its components.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.composite import CompositeTensor


def is_nested(structure: object) -> bool:
    """Return whether `structure` is a container, not a leaf."""
    return isinstance(structure, list | tuple | Mapping | CompositeTensor)


def flatten(structure: object) -> list[Any]:
    """Return the leaves in order."""
    if not is_nested(structure):
        return [structure]
    return [leaf for item in items(structure) for leaf in flatten(item)]


def pack(structure: object, leaves: Sequence[object]) -> Any:
    """Return the leaves in a structure like `structure`, with containers of the same types.

    Raises:
        InvalidArgumentError: the number of leaves differs.
    """
    count = len(flatten(structure))
    if count != len(leaves):
        raise InvalidArgumentError("the structure has a different number of leaves", expected=count, actual=len(leaves))
    return _pack(structure, iter(leaves))


def map_structure(function: Callable[..., object], structure: object, *others: object) -> Any:
    """Return a structure of the results of `function` for each leaf; `others` provide further arguments.

    Raises:
        DTypeError: another structure is not nested like the first one.
    """
    for other in others:
        check_same_structure(structure, other)
    columns = [flatten(s) for s in (structure, *others)]
    return pack(structure, [function(*row) for row in zip(*columns, strict=True)])


def check_same_structure(expected: object, actual: object, what: str = "the structures differ") -> None:
    """Raise DTypeError unless both are nested alike. A list and a tuple count as the same."""
    if _outline(expected) != _outline(actual):
        raise DTypeError(what, expected=describe(expected), actual=describe(actual))


def describe(structure: object) -> str:
    """Return the structure with "." for each leaf, for error messages."""
    if isinstance(structure, Mapping):
        return "{" + ", ".join(f"{k!r}: {describe(structure[k])}" for k in _keys(structure)) + "}"
    if isinstance(structure, CompositeTensor):
        return type(structure).__name__
    if is_nested(structure):
        inside = ", ".join(describe(item) for item in items(structure))
        return f"[{inside}]" if isinstance(structure, list) else f"({inside})"
    return "."


def _outline(structure: object) -> object:
    if isinstance(structure, Mapping):
        return ("mapping", *((key, _outline(structure[key])) for key in _keys(structure)))
    if isinstance(structure, CompositeTensor):
        return type(structure), len(structure.components)
    if is_nested(structure):
        # Lists and plain tuples have no `_fields`, so they have equal outlines.
        fields = getattr(type(structure), "_fields", None)
        return (fields, *map(_outline, items(structure)))
    return None


def _keys(mapping: Mapping[Any, object]) -> list[Any]:
    # Sorted as in TensorFlow, so that dicts with the same keys are the same structure.
    return sorted(mapping)


def items(structure: Any) -> Iterator[Any]:
    """Return an iterator over the items of a container, in order."""
    if isinstance(structure, Mapping):
        return (structure[key] for key in _keys(structure))
    return iter(structure.components if isinstance(structure, CompositeTensor) else structure)


def _pack(structure: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(structure, Mapping):
        packed = {key: _pack(structure[key], leaves) for key in _keys(structure)}
        # Leaves are in the sorted order of the keys, but the new mapping keeps the order of `structure`.
        kind: Any = type(structure)
        return kind((key, packed[key]) for key in structure)
    if not is_nested(structure):
        return next(leaves)
    if isinstance(structure, CompositeTensor):
        return structure.with_components([next(leaves) for _ in structure.components])
    packed_items = [_pack(item, leaves) for item in structure]
    kind = type(structure)
    # A named tuple takes its items as arguments.
    return kind(*packed_items) if hasattr(kind, "_fields") else kind(packed_items)
