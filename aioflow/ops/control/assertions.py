"""Checks of values, shapes and dtypes, when the graph is built if these are known, else in each step by `Assert`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype, float32
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.shapes import format_dims
from aioflow.graph.static_value import constant_value, partial_value
from aioflow.memory.values import Array
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.control.primitives import Assert
from aioflow.ops.core import group, no_op
from aioflow.ops.scoping import control_dependencies, name_scope

__all__ = [
    "assert_equal",
    "assert_greater",
    "assert_greater_equal",
    "assert_integer",
    "assert_less",
    "assert_less_equal",
    "assert_near",
    "assert_negative",
    "assert_non_negative",
    "assert_non_positive",
    "assert_none_equal",
    "assert_positive",
    "assert_proper_iterable",
    "assert_rank",
    "assert_rank_at_least",
    "assert_rank_in",
    "assert_same_float_dtype",
    "assert_scalar",
    "assert_type",
    "get_static_value",
    "is_non_decreasing",
    "is_numeric_tensor",
    "is_strictly_increasing",
]

Data: TypeAlias = Sequence[TensorLike] | None
Shapes: TypeAlias = Mapping[Any, Any] | Iterable[tuple[TensorLike, Any]]

_STATIC: Final = "static_checks_determined_all_ok"  # name of the node of a check that is known to hold
_ANY: Final = (None, ".")  # a size that is not checked
_ANY_RANK: Final = (..., "*")


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _assert_all(
    holds: Tensor, known: Callable[[], Any] | None, data: Data, default: Sequence[TensorLike], summarize: int | None
) -> Operation:
    """Return an Assert that all elements hold. `known` returns them if they are known already.

    Raises:
        InvalidArgumentError: they are known, and not all of them hold.
    """
    shown = list(default if data is None else data)
    if known is not None and not np.all(known()):
        raise InvalidArgumentError(
            f"an assertion does not hold: {' '.join(map(_text, shown))}", expected="true for all elements"
        )
    axes = make("Range", 0, make("Rank", holds), 1)
    return Assert(make("All", holds, axes, keep_dims=False), shown, summarize)


def _text(value: TensorLike) -> str:
    """Return a value for an error while the graph is built: a tensor by its value, if that is known, or its name."""
    found = constant_value(value) if isinstance(value, Tensor) else value
    if found is None and isinstance(value, Tensor):
        return value.name
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)


def _is_symbolic(value: object) -> bool:
    """Return whether this is a tensor or a variable."""
    return isinstance(getattr(value, "dtype", None), DType)


def _both(x: TensorLike, y: TensorLike) -> tuple[Tensor, Tensor]:
    if not _is_symbolic(x) and _is_symbolic(y):
        right = convert_to_tensor(y, name="y")
        return convert_to_tensor(x, right.dtype, name="x"), right
    left = convert_to_tensor(x, name="x")
    return left, convert_to_tensor(y, left.dtype, name="y")


def _compare(
    scope: str,
    sign: str,
    op: str,
    function: Callable[[Array, Array], Any],
    x: TensorLike,
    y: TensorLike,
    data: Data,
    summarize: int | None,
    message: str | None,
    name: str | None,
) -> Operation:
    with name_scope(name, scope, [x, y]):
        left, right = _both(x, y)
        a, b = constant_value(left), constant_value(right)
        known = None if a is None or b is None else lambda: function(a, b)
        head = f"{message or ''}\nthe condition x {sign} y did not hold element-wise:".lstrip()
        default: list[TensorLike] = [head, f"x ({left.name}) = ", left, f"y ({right.name}) = ", right]
        return _assert_all(make(op, left, right), known, data, default, summarize)


def assert_equal(
    x: TensorLike,
    y: TensorLike,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """Return a node that fails the step unless x == y for all elements, with broadcasting.

        with af.control_dependencies([af.assert_equal(total, 1.0)]):
            y = af.identity(x)

    Args:
        x: A tensor.
        y: A tensor of the same dtype.
        data: Tensors that the error shows; default: a sentence with both operands.
        summarize: Number of elements of each tensor to show; 3 if not given, -1 for all.
        message: Text at the start of the error.
        name: Name scope of the nodes.

    Raises:
        InvalidArgumentError: both values are known when the graph is built, and the condition does not hold; else when
            a step runs the node.
    """
    return _compare("assert_equal", "==", "Equal", np.equal, x, y, data, summarize, message, name)


def assert_none_equal(
    x: TensorLike,
    y: TensorLike,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """Return a node that fails the step unless x != y for all elements. See `assert_equal`."""
    return _compare("assert_none_equal", "!=", "NotEqual", np.not_equal, x, y, data, summarize, message, name)


def assert_less(
    x: TensorLike,
    y: TensorLike,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """Return a node that fails the step unless x < y for all elements. See `assert_equal`."""
    return _compare("assert_less", "<", "Less", np.less, x, y, data, summarize, message, name)


def assert_less_equal(
    x: TensorLike,
    y: TensorLike,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """Return a node that fails the step unless x <= y for all elements. See `assert_equal`."""
    return _compare("assert_less_equal", "<=", "LessEqual", np.less_equal, x, y, data, summarize, message, name)


def assert_greater(
    x: TensorLike,
    y: TensorLike,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """Return a node that fails the step unless x > y for all elements. See `assert_equal`."""
    return _compare("assert_greater", ">", "Greater", np.greater, x, y, data, summarize, message, name)


def assert_greater_equal(
    x: TensorLike,
    y: TensorLike,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """Return a node that fails the step unless x >= y for all elements. See `assert_equal`."""
    return _compare(
        "assert_greater_equal", ">=", "GreaterEqual", np.greater_equal, x, y, data, summarize, message, name
    )


def assert_negative(
    x: TensorLike,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """Return a node that fails the step unless all elements are negative. See `assert_equal`."""
    return _with_zero("assert_negative", "< 0", "Less", np.less, x, data, summarize, message, name)


def assert_positive(
    x: TensorLike,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """Return a node that fails the step unless all elements are positive. See `assert_equal`."""
    return _with_zero("assert_positive", "> 0", "Greater", np.greater, x, data, summarize, message, name)


def assert_non_negative(
    x: TensorLike,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """Return a node that fails the step unless no element is negative. See `assert_equal`."""
    return _with_zero(
        "assert_non_negative", ">= 0", "GreaterEqual", np.greater_equal, x, data, summarize, message, name
    )


def assert_non_positive(
    x: TensorLike,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """Return a node that fails the step unless no element is positive. See `assert_equal`."""
    return _with_zero("assert_non_positive", "<= 0", "LessEqual", np.less_equal, x, data, summarize, message, name)


def _with_zero(
    scope: str,
    sign: str,
    op: str,
    function: Callable[[Array, Array], Any],
    x: TensorLike,
    data: Data,
    summarize: int | None,
    message: str | None,
    name: str | None,
) -> Operation:
    with name_scope(name, scope, [x]):
        tensor = convert_to_tensor(x, name="x")
        zero = constant(0, tensor.dtype)
        value = constant_value(tensor)
        known = None if value is None else lambda: function(value, np.zeros((), value.dtype))
        head = f"{message or ''}\nthe condition x {sign} did not hold element-wise:".lstrip()
        return _assert_all(make(op, tensor, zero), known, data, [head, f"x ({tensor.name}) = ", tensor], summarize)


def assert_near(
    x: TensorLike,
    y: TensorLike,
    rtol: TensorLike | None = None,
    atol: TensorLike | None = None,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """Return a node that fails the step unless |x - y| <= atol + rtol * |y| for all elements. See `assert_equal`.

    Args:
        x: A tensor of floats or complex numbers.
        y: A tensor of the same dtype.
        rtol: Relative tolerance; default: 10 times the machine epsilon of the dtype.
        atol: Absolute tolerance; the same default.
        data: Tensors that the error shows; default: a sentence with both operands.
        summarize: Number of elements of each tensor to show; 3 if not given, -1 for all.
        message: Text at the start of the error.
        name: Name scope of the nodes.

    Raises:
        InvalidArgumentError: the dtype is neither floating nor complex.
    """
    with name_scope(name, "assert_near", [x, y]):
        left, right = _both(x, y)
        real = left.dtype.real_dtype
        if not real.is_floating:
            raise InvalidArgumentError(
                "only floats and complex numbers are compared within a tolerance; use assert_equal for other dtypes",
                expected="a floating or complex dtype",
                actual=left.dtype,
            )
        # ml_dtypes has no type annotations for it.
        epsilon = 10 * float(ml_dtypes.finfo(real.np_dtype).eps)  # type: ignore[no-untyped-call]
        relative = convert_to_tensor(epsilon if rtol is None else rtol, real, name="rtol")
        absolute = convert_to_tensor(epsilon if atol is None else atol, real, name="atol")
        size = "ComplexAbs" if left.dtype.is_complex else "Abs"
        distance = make(size, left - right)
        limit = absolute + relative * make(size, right)
        head = f"{message or ''}\nx and y are not equal within the tolerance:".lstrip()
        default: list[TensorLike] = [
            *(head, "relative", relative, "absolute", absolute),
            *(f"x ({left.name}) = ", left, f"y ({right.name}) = ", right),
        ]
        return _assert_all(make("LessEqual", distance, limit), None, data, default, summarize)


def is_non_decreasing(x: TensorLike, name: str | None = None) -> Tensor:
    """Return whether each element, in row-major order, is at least the one before it: a bool scalar."""
    with name_scope(name, "is_non_decreasing", [x]):
        return _ordered("LessEqual", x)


def is_strictly_increasing(x: TensorLike, name: str | None = None) -> Tensor:
    """Return whether each element, in row-major order, is above the one before it: a bool scalar."""
    with name_scope(name, "is_strictly_increasing", [x]):
        return _ordered("Less", x)


def _ordered(op: str, x: TensorLike) -> Tensor:
    tensor = convert_to_tensor(x, name="x")
    if not is_numeric_tensor(tensor):
        raise DTypeError("only numbers have an order", expected="a tensor of numbers", actual=tensor.dtype)
    flat = make("Reshape", tensor, [-1])
    holds = make(op, flat[:-1], flat[1:])
    return make("All", holds, [0], keep_dims=False)


# ── ranks and shapes ──────────────────────────────────────────────────────────────────────────────────────────────────


def assert_rank(
    x: TensorLike,
    rank: TensorLike,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """Return a node that fails the step unless `x` has that rank. See `assert_equal`.

    Raises:
        InvalidArgumentError: `rank` is no integer scalar; or the ranks are known when the graph is built and differ.
    """
    return _assert_rank("assert_rank", "", "Equal", int.__eq__, x, [rank], data, summarize, message, name)


def assert_rank_at_least(
    x: TensorLike,
    rank: TensorLike,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """Return a node that fails the step unless `x` has at least that rank. See `assert_rank`."""
    return _assert_rank(
        "assert_rank_at_least", "at least ", "GreaterEqual", int.__ge__, x, [rank], data, summarize, message, name
    )


def assert_rank_in(
    x: TensorLike,
    ranks: Iterable[TensorLike],
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """Return a node that fails the step unless `x` has one of the ranks. See `assert_rank`."""
    return _assert_rank(
        "assert_rank_in", "one of ", "Equal", int.__eq__, x, list(ranks), data, summarize, message, name
    )


def _assert_rank(
    scope: str,
    words: str,
    op: str,
    function: Callable[[int, int], bool],
    x: TensorLike,
    ranks: Sequence[TensorLike],
    data: Data,
    summarize: int | None,
    message: str | None,
    name: str | None,
) -> Operation:
    with name_scope(name, scope, [x]):
        tensor = convert_to_tensor(x, name="x")
        wanted = [_rank(each) for each in ranks]
        known = [constant_value(each) for each in wanted]
        expected = words + ", ".join(map(_text, wanted))
        if tensor.dims is not None and all(each is not None for each in known):
            rank = len(tensor.dims)
            if not any(function(rank, int(each)) for each in known if each is not None):
                raise InvalidArgumentError(
                    f"{_head(message)}{tensor.name} has another rank",
                    expected=expected,
                    actual=f"{rank}, shape {format_dims(tensor.dims)}",
                )
            return no_op(_STATIC)
        actual = make("Rank", tensor)
        holds = make("Any", make("Pack", [make(op, actual, each) for each in wanted], axis=0), [0], keep_dims=False)
        default = [f"{_head(message)}{tensor.name} has another rank; expected:", *_joined(words, wanted)]
        default += ["actual shape:", make("Shape", tensor)]
        return Assert(holds, list(default if data is None else data), summarize)


def _joined(words: str, ranks: Sequence[Tensor]) -> list[TensorLike]:
    return [words, *ranks] if words else list(ranks)


def _rank(value: TensorLike) -> Tensor:
    """Return a rank as an int32 scalar."""
    rank = convert_to_tensor(value, name="rank")
    if not rank.dtype.is_integer:
        raise DTypeError("a rank is an integer", expected="int32", actual=rank.dtype)
    if rank.dims not in (None, ()):
        raise InvalidArgumentError("a rank is a scalar", expected="shape []", actual=format_dims(rank.dims))
    return make("Cast", rank, DstT="int32") if rank.dtype.name != "int32" else rank


def _head(message: str | None) -> str:
    return f"{message}: " if message else ""


def assert_scalar(tensor: TensorLike, name: str | None = None, message: str | None = None) -> Tensor:
    """Return the tensor. Raise InvalidArgumentError unless its shape is known when the graph is built to be []."""
    with name_scope(name, "assert_scalar", [tensor]) as scope:
        found = convert_to_tensor(tensor, name=scope)
    if found.dims != ():
        raise InvalidArgumentError(
            f"{_head(message)}{found.name} is no scalar", expected="shape []", actual=format_dims(found.dims)
        )
    return found


def assert_shapes(
    shapes: Shapes,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """Return a node that fails the step unless the tensors have shapes that fit each other. See `assert_equal`.

        af.debugging.assert_shapes([(x, ("N", 3)), (y, ("N", None)), (z, ("*", "N"))])

    A scalar counts as a vector of one element.

    Args:
        shapes: Pairs, or a mapping, of a tensor and its shape: a size for each axis. A size is an integer, a name that
            stands for one size in all shapes, or None or "." for any. "*" or `...` at the front stand for any number of
            axes. None instead of a shape checks nothing.
        data: Tensors that the error shows; default: a sentence with the shape.
        summarize: Number of elements of each tensor to show; 3 if not given, -1 for all.
        message: Text at the start of the error.
        name: Name scope of the nodes.

    Raises:
        InvalidArgumentError: a shape is malformed; or the shapes are known when the graph is built and do not fit.
    """
    pairs = shapes.items() if isinstance(shapes, Mapping) else shapes
    with name_scope(name, "assert_shapes", []):
        rows = [_Row(convert_to_tensor(x), shape) for x, shape in pairs if shape is not None]
        with_ranks = [
            row.assert_rank(data, summarize, message) for row in rows if not (row.is_open and len(row.sizes) < 2)
        ]
        found: dict[Hashable, tuple[int | Tensor, str]] = {}
        checks = []
        # The sizes are read only after the ranks have been checked.
        with control_dependencies(with_ranks):
            for row in rows:
                for axis, wanted in row.wanted():
                    size = row.size(axis)
                    which = f"axis {axis} of {row.tensor.name}"
                    known = (wanted, "the shape") if isinstance(wanted, int) else found.get(wanted)
                    if known is None:
                        found[wanted] = size, which
                        continue
                    expected, reason = known
                    if isinstance(size, int) and isinstance(expected, int):
                        if size != expected:
                            raise InvalidArgumentError(
                                f"{_head(message)}{which} has another size than {reason}",
                                expected=expected,
                                actual=f"{size}, shape {format_dims(row.tensor.dims)}",
                            )
                        continue
                    head = f"{_head(message)}{which} has another size than {reason}; expected:"
                    default: list[TensorLike] = [head, expected, "actual shape:", make("Shape", row.tensor)]
                    checks.append(
                        Assert(make("Equal", size, expected), list(default if data is None else data), summarize)
                    )
            return group(*checks)


class _Row:
    """A tensor with the shape that `assert_shapes` expects.

    Attributes:
        tensor: The tensor.
        is_open: Whether it may have more axes in front.
        sizes: The expected sizes of the last axes.
    """

    def __init__(self, tensor: Tensor, shape: Any) -> None:
        self.tensor = tensor
        try:
            sizes = tuple(shape)
        except TypeError as error:
            raise InvalidArgumentError(
                f"the shape of {tensor.name} is no sequence", expected="a size for each axis", actual=shape
            ) from error
        # Compared by identity and type: a size may be an array scalar, whose == is elementwise.
        stars = [at for at, size in enumerate(sizes) if size is ... or (isinstance(size, str) and size == "*")]
        if stars not in ([], [0]):
            raise InvalidArgumentError(
                f"the shape of {tensor.name} has '*' or ... behind a size", expected="at the front", actual=sizes
            )
        self.is_open = bool(stars)
        self.sizes = sizes[len(stars) :]

    def assert_rank(self, data: Data, summarize: int | None, message: str | None) -> Operation:
        rank = len(self.sizes)
        if self.is_open:
            return assert_rank_at_least(self.tensor, rank, data, summarize, message)
        if rank < 2:
            return assert_rank_in(self.tensor, [0, 1], data, summarize, message)
        return assert_rank(self.tensor, rank, data, summarize, message)

    def wanted(self) -> Iterable[tuple[int, Hashable]]:
        """Yield the axes that are checked, with the expected size: an int, or a name. They are negative if open."""
        for at, size in enumerate(self.sizes):
            value = getattr(size, "value", size)  # of a Dimension
            if value is None or value == ".":
                continue
            axis = at - len(self.sizes) if self.is_open else at
            yield axis, value if isinstance(value, str) else _whole_or_name(value)

    def size(self, axis: int) -> int | Tensor:
        """Return the size of an axis, as an int if it is known."""
        dims = self.tensor.dims
        if dims is not None:
            dims = dims or (1,)
            if (size := dims[axis]) is not None:
                return size
        shape = make("Shape", self.tensor)
        if dims is None and len(self.sizes) == 1:
            # A scalar counts as a vector of one element, whose size is read if there is no other.
            shape = make("ConcatV2", [shape, [1]] if axis == 0 else [[1], shape], 0)
        return shape[axis]


def _whole_or_name(value: Any) -> Hashable:
    try:
        return int(value)
    except (TypeError, ValueError):
        found: Hashable = value
        return found


# ── dtypes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def assert_integer(x: TensorLike, message: str | None = None, name: str | None = None) -> Operation:
    """Return a node that does nothing. Raise DTypeError, when the graph is built, unless `x` has integers."""
    with name_scope(name, "assert_integer", [x]):
        tensor = convert_to_tensor(x, name="x")
        if not tensor.dtype.is_integer:
            raise DTypeError(
                f"{_head(message)}{tensor.name} has no integers", expected="an integer dtype", actual=tensor.dtype
            )
        return no_op("statically_determined_was_integer")


def assert_type(
    tensor: TensorLike, tf_type: DTypeLike, message: str | None = None, name: str | None = None
) -> Operation:
    """Return a node that does nothing. Raise DTypeError, when the graph is built, unless the tensor has that dtype."""
    expected = as_dtype(tf_type)
    with name_scope(name, "assert_type", [tensor]):
        found = convert_to_tensor(tensor, name="tensor")
        if found.dtype != expected:
            raise DTypeError(
                f"{_head(message)}{found.name} has another dtype", expected=expected.name, actual=found.dtype.name
            )
        return no_op("statically_determined_correct_type")


def assert_same_float_dtype(
    tensors: Sequence[TensorLike | None] | None = None, dtype: DTypeLike | None = None
) -> DType:
    """Return the floating dtype of all the tensors: `dtype` if given, float32 if there are no tensors.

    Raises:
        DTypeError: the tensors have several dtypes, another one than `dtype`, or it is not floating.
    """
    expected = None if dtype is None else as_dtype(dtype)
    for each in tensors or ():
        if each is None:
            continue
        found = convert_to_tensor(each).dtype
        if expected is not None and found != expected:
            raise DTypeError(f"{each!r} has another dtype than the others", expected=expected.name, actual=found.name)
        expected = found
    if expected is None:
        return float32
    if not expected.is_floating:
        raise DTypeError("the dtype is not floating", expected="a floating dtype", actual=expected.name)
    return expected


def is_numeric_tensor(tensor: object) -> bool:
    """Return whether this is a tensor of numbers: neither bools nor strings."""
    dtype = getattr(tensor, "dtype", None)
    return isinstance(dtype, DType) and (dtype.is_numeric or dtype.is_quantized)


def get_static_value(tensor: TensorLike, partial: bool = False) -> Any:
    """Return a tensor's value if it follows from constants and static shapes alone; else None.

    Constants are returned whatever their size, computed values only up to 4,096 elements.

    Args:
        tensor: A tensor. Anything else is returned unchanged.
        partial: Return integers of which only some are known, too: as objects, with None for an unknown element.
    """
    if not isinstance(tensor, Tensor):
        return tensor
    value = partial_value(tensor) if partial else constant_value(tensor)
    if value is None or (value.size and all(each is None for each in value.reshape(-1))):
        return None
    return value.copy()  # the graph's own value must not change


def assert_proper_iterable(values: object) -> None:
    """Raise DTypeError if `values` cannot be iterated over as a collection: a single tensor, array or text."""
    if _is_symbolic(values) or isinstance(values, np.ndarray | str | bytes) or not isinstance(values, Iterable):
        raise DTypeError("not a collection", expected="a list, a tuple, …", actual=type(values).__name__)
