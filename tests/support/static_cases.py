"""Tensors of sizes with the shapes that they describe, and values with whether they are tensors, as in TensorFlow 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final


def _rows(m: Any) -> Any:
    return m.shape(m.placeholder("float32", [2, None]))


def _size(m: Any) -> Any:
    return m.placeholder("int32", [])


# The known sizes; None for an unknown rank.
SHAPES: Final[dict[str, tuple[Callable[[Any], Any], list[int | None] | type[Exception] | None]]] = {
    "a constant": (lambda m: m.constant([1, 2, -1]), [1, 2, None]),
    "an empty constant": (lambda m: m.constant([], "int32"), []),
    "the scalar -1": (lambda m: m.constant(-1), None),
    "a shape": (_rows, [2, None]),
    "a part of a shape": (lambda m: _rows(m)[1:], [None]),
    "packed sizes": (lambda m: m.stack([2, _size(m)]), [2, None]),
    "cast sizes": (lambda m: m.cast(m.stack([2, _size(m)]), "int64"), [2, None]),
    "joined sizes": (lambda m: m.concat([_rows(m), [3]], 0), [2, None, 3]),
    "equal sizes": (lambda m: m.fill([2], 3), [3, 3]),
    "three unknown sizes": (lambda m: m.placeholder("int32", [3]), [None, None, None]),
    "unknown sizes": (lambda m: m.placeholder("int32", [None]), None),
    "an unknown rank": (lambda m: m.placeholder("int32"), None),
    "an unknown scalar": (_size, ValueError),
    "another scalar": (lambda m: m.constant(3), ValueError),
    "a matrix": (lambda m: m.constant([[1]]), ValueError),
    "floats": (lambda m: m.constant([1.0, 2.0]), TypeError),
}


def shape_of(constant_value_as_shape: Callable[[Any], Any], m: Any, name: str) -> Any:
    with m.Graph().as_default():
        tensor = SHAPES[name][0](m)
        try:
            shape = constant_value_as_shape(tensor)
        except TypeError:
            return TypeError
        except ValueError:
            return ValueError
        return None if shape.ndims is None else shape.as_list()


def tensors(m: Any) -> list[bool]:
    """Return what `is_tensor` returns for values of several kinds, and whether references compare by identity."""
    with m.Graph().as_default():
        x, variable = m.constant(1.0), m.Variable(1.0)
        sparse = m.SparseTensor([[0]], [1], [2])
        kinds = (x, variable, variable.handle, sparse, m.IndexedSlices(x, x), x.op, 1.0, "a", [x], m.TensorShape([1]))
        references = {x.ref(): 1, variable.ref(): 2, x.experimental_ref(): 3}
        return [
            *(m.is_tensor(kind) for kind in kinds),
            *(x.ref() == x.experimental_ref(), x.ref() == variable.ref(), x.ref().deref() is x),
            *(list(references.values()) == [3, 2], variable.ref().deref() is variable),
        ]


TENSORS: Final = [True] * 5 + [False] * 5 + [True, False, True, True, True]
