"""`map_fn`, `foldl`, `foldr` and `scan`: loops over the first axis of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, overload

import numpy as np

from aioflow.arguments import check_callable
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.composite import CompositeTensor
from aioflow.graph.dtypes import DTypeLike
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims, format_dims, is_compatible, merge_dims
from aioflow.graph.tensor_like import SupportsTensor
from aioflow.memory.values import Array
from aioflow.ops import nest
from aioflow.ops.apply import convert_to_tensor, make
from aioflow.ops.array.tensor_array import TensorArray
from aioflow.ops.control.branches_and_loops import while_loop
from aioflow.ops.scoping import name_scope

__all__ = ["foldl", "foldr", "map_fn", "scan"]

# One tensor: lists and tuples are structures of several.
_Mapper: TypeAlias = Callable[[Any], object]
_Folder: TypeAlias = Callable[[Any, Any], object]
_Rows: TypeAlias = Tensor | SupportsTensor | Array
_Value: TypeAlias = _Rows | np.generic | complex | str | bytes


@overload
def map_fn(
    fn: _Mapper,
    elems: _Rows,
    dtype: DTypeLike | None = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
    fn_output_signature: DTypeLike | None = None,
) -> Tensor: ...


@overload
def map_fn(
    fn: _Mapper,
    elems: object,
    dtype: object = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
    fn_output_signature: object = None,
) -> Any: ...


def map_fn(
    fn: _Mapper,
    elems: object,
    dtype: object = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
    fn_output_signature: object = None,
) -> object:
    """Apply `fn` to each row of `elems`, and stack the results.

    Args:
        fn: A function of a row, in the structure of `elems`, that returns a tensor or a structure of them.
        elems: A tensor or a structure of tensors of the same first dimension.
        dtype: Dtypes of the results, in their structure; required if they are not those of `elems`.
        parallel_iterations: Maximum number of rows in progress at once; 10 if not given.
        back_prop: See `while_loop`.
        swap_memory: See `while_loop`.
        infer_shape: Whether all results are of one shape, so that it is known statically.
        name: Name scope of the nodes.
        fn_output_signature: A newer name of `dtype`.

    Raises:
        DTypeError, InvalidArgumentError: the results of `fn` do not match `dtype`, or `elems` has no tensors, or
            tensors of different first dimensions.
    """
    check_callable(fn, "fn")
    wanted = dtype if fn_output_signature is None else fn_output_signature
    rows = _rows(elems)
    with name_scope(name, "map", rows):
        count, static = _count(rows)
        sources = [_unstacked(t) for t in rows]
        structure = elems if wanted is None else wanted
        types = [t.dtype for t in rows] if wanted is None else nest.flatten(wanted)
        arrays = [TensorArray(t, size=count, infer_shape=infer_shape) for t in types]

        def step(i: Tensor, held: list[TensorArray]) -> object:
            made = fn(nest.pack(elems, [ta.read(i) for ta in sources]))
            nest.check_same_structure(structure, made, "fn does not return the structure of dtype")
            return i + 1, [ta.write(i, v) for ta, v in zip(held, nest.flatten(made), strict=True)]

        _, arrays = while_loop(
            lambda i, _: i < count,
            step,
            (0, arrays),
            parallel_iterations=parallel_iterations or 10,
            back_prop=back_prop,
            swap_memory=swap_memory,
            # With a bound, the loop counts its iterations anyway, so a gradient adds no counter.
            maximum_iterations=count,
        )
        return nest.pack(structure, [_stacked(ta, static) for ta in arrays])


@overload
def foldl(
    fn: _Folder,
    elems: _Rows,
    initializer: _Value | None = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Tensor: ...


@overload
def foldl(
    fn: _Folder,
    elems: object,
    initializer: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any: ...


def foldl(
    fn: _Folder,
    elems: object,
    initializer: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> object:
    """Return `fn(…fn(fn(initializer, elems[0]), elems[1])…)`; without an initializer, start from the first row.

    Raises:
        InvalidArgumentError: there is neither a row nor an initializer, or the first dimensions differ.
        DTypeError: `fn` is not callable, or its results have another dtype than `initializer`.
    """
    options = {"parallel_iterations": parallel_iterations, "back_prop": back_prop, "swap_memory": swap_memory}
    return _fold(fn, elems, initializer, options, name or "foldl", backwards=False)


@overload
def foldr(
    fn: _Folder,
    elems: _Rows,
    initializer: _Value | None = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Tensor: ...


@overload
def foldr(
    fn: _Folder,
    elems: object,
    initializer: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any: ...


def foldr(
    fn: _Folder,
    elems: object,
    initializer: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> object:
    """Fold like `foldl`, but from the last row to the first."""
    options = {"parallel_iterations": parallel_iterations, "back_prop": back_prop, "swap_memory": swap_memory}
    return _fold(fn, elems, initializer, options, name or "foldr", backwards=True)


def _fold(
    fn: _Folder, elems: object, initializer: object, options: Mapping[str, Any], name: str, backwards: bool
) -> object:
    check_callable(fn, "fn")
    rows = _rows(elems)
    with name_scope(name, values=rows):
        count, static = _count(rows)
        sources = [_unstacked(t) for t in rows]
        start, state, remaining = 0, initializer, count
        if initializer is None:
            _require_rows(static)
            first = count - 1 if backwards else 0
            state = nest.pack(elems, [ta.read(first) for ta in sources])
            # The first row is the state already, so the loop runs once less.
            start, remaining = 1, count - 1

        def step(i: Tensor, held: object) -> object:
            at = count - 1 - i if backwards else i
            return i + 1, fn(held, nest.pack(elems, [ta.read(at) for ta in sources]))

        _, result = while_loop(lambda i, _: i < count, step, (start, state), maximum_iterations=remaining, **options)
        return result


@overload
def scan(
    fn: _Folder,
    elems: _Rows,
    initializer: _Value | None = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor: ...


@overload
def scan(
    fn: _Folder,
    elems: object,
    initializer: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> Any: ...


def scan(
    fn: _Folder,
    elems: object,
    initializer: object = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> object:
    """Stack all intermediate results of a fold.

    Args:
        fn: A function of the result so far and a row. It returns the next result, in the structure of `initializer`, or
            of `elems` if there is no initializer.
        elems: A tensor or a structure of tensors of the same first dimension.
        initializer: The result to start from; if not given, the first row.
        parallel_iterations: See `while_loop`.
        back_prop: See `while_loop`.
        swap_memory: See `while_loop`.
        infer_shape: Whether all results are of one shape, so that it is known statically.
        reverse: Whether to go from the last row to the first; the results keep the order of the rows.
        name: Name scope of the nodes.

    Raises:
        InvalidArgumentError: there is neither a row nor an initializer, or the first dimensions differ.
        DTypeError: `fn` is not callable, or its results have other dtypes than the ones before.
    """
    check_callable(fn, "fn")
    rows = _rows(elems)
    with name_scope(name, "scan", rows):
        count, static = _count(rows)
        sources = [_unstacked(t) for t in rows]
        structure = elems if initializer is None else initializer
        last = count - 1
        if initializer is None:
            _require_rows(static)
            state = [ta.read(last if reverse else 0) for ta in sources]
        else:
            state = [convert_to_tensor(t) for t in nest.flatten(initializer)]
        arrays = [
            TensorArray(t.dtype, size=count, element_shape=t.dims if infer_shape else None, infer_shape=infer_shape)
            for t in state
        ]
        if initializer is None:
            arrays = [ta.write(last if reverse else 0, t) for ta, t in zip(arrays, state, strict=True)]

        def step(i: Tensor, held: list[Tensor], made: list[TensorArray]) -> object:
            at = last - i if reverse else i
            row = nest.pack(elems, [ta.read(at) for ta in sources])
            result = fn(nest.pack(structure, held), row)
            nest.check_same_structure(structure, result, "fn does not return the structure it was given")
            flat = [
                convert_to_tensor(t, dtype_hint=old.dtype) for t, old in zip(nest.flatten(result), held, strict=True)
            ]
            return i + 1, flat, [ta.write(at, t) for ta, t in zip(made, flat, strict=True)]

        first = 1 if initializer is None else 0
        _, _, arrays = while_loop(
            lambda i, *_: i < count,
            step,
            (first, state, arrays),
            parallel_iterations=parallel_iterations,
            back_prop=back_prop,
            swap_memory=swap_memory,
            maximum_iterations=count - first,
        )
        return nest.pack(structure, [_stacked(ta, static) for ta in arrays])


def _rows(elems: object) -> list[Tensor]:
    if isinstance(elems, CompositeTensor):
        raise DTypeError("a composite tensor has no rows", expected="tensors", actual=repr(elems))
    rows = [convert_to_tensor(t, name="elem") for t in nest.flatten(elems)]
    if not rows:
        raise InvalidArgumentError(
            "there are no elements to iterate over", expected="at least one tensor", actual=repr(elems)
        )
    return rows


def _count(rows: list[Tensor]) -> tuple[Tensor, int | None]:
    """Return the number of rows, as a tensor and as a number; the number is None if it is not static."""
    sizes: Dims = None
    for tensor in rows:
        if tensor.dims == ():
            raise InvalidArgumentError("a scalar has no rows", expected="rank >= 1", actual=repr(tensor))
        size: Dims = None if tensor.dims is None else tensor.dims[:1]
        if not is_compatible(sizes, size):
            raise InvalidArgumentError(
                "the first dimensions differ", expected=format_dims(sizes), actual=format_dims(size)
            )
        sizes = merge_dims(sizes, size)
    static = sizes[0] if sizes else None
    if static is not None:
        return convert_to_tensor(static), static
    return make("StridedSlice", make("Shape", rows[0]), [0], [1], [1], shrink_axis_mask=1), None


def _require_rows(static: int | None) -> None:
    if static == 0:
        raise InvalidArgumentError("no rows and no initializer", expected="at least one row", actual=0)


def _unstacked(tensor: Tensor) -> TensorArray:
    count = make("StridedSlice", make("Shape", tensor), [0], [1], [1], shrink_axis_mask=1)
    array = TensorArray(tensor.dtype, size=count, clear_after_read=False)
    return array.unstack(tensor)


def _stacked(array: TensorArray, static: int | None) -> Tensor:
    stacked = array.stack()
    if stacked.dims is not None:
        # The array does not know its size statically.
        stacked.set_shape((static, *stacked.dims[1:]))
    return stacked
