"""Parity of the array ops with TensorFlow: shapes, joining and splitting, slicing, padding, and making tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.ops.apply import apply_op

RNG = np.random.default_rng(20260)


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def i(*shape: int, high: int = 10) -> Any:
    return RNG.integers(0, high, shape).astype(np.int32)


def ints(*values: Any) -> Any:
    return np.array(values, dtype=np.int32)


def words(*values: Any) -> Any:
    return np.array(values, dtype=object)


def raw(m: Any, op: str, **kwargs: Any) -> Any:
    """Build an op that no public builder makes."""
    if m is aioflow:
        names = [a.name for a in aioflow.graph.opdef.OPS.get(op).inputs]
        made = apply_op(op, *[kwargs.pop(n) for n in names], **kwargs)
    else:
        made = getattr(m.raw_ops, op)(**kwargs)
    return list(made) if isinstance(made, list | tuple) else made


Case = tuple[str, Callable[..., Any], tuple[Any, ...]]

SHAPES: list[Case] = [
    ("shape", lambda m, x: m.shape(x), (f(2, 3),)),
    ("shape_scalar", lambda m, x: m.shape(x), (f(),)),
    ("shape_int64", lambda m, x: m.shape(x, out_type=m.as_dtype("int64")), (f(0, 3),)),
    ("shape_n", lambda m, x, y: m.shape_n([x, y]), (f(2, 3), f(1))),
    ("size", lambda m, x: m.size(x), (f(2, 3),)),
    ("size_empty", lambda m, x: m.size(x, out_type=m.as_dtype("int64")), (f(0, 3),)),
    ("rank", lambda m, x: m.rank(x), (f(2, 3, 1),)),
    ("raw_shape", lambda m, x: raw(m, "Shape", input=x), (f(2, 3),)),
    ("raw_size", lambda m, x: raw(m, "Size", input=x), (f(2, 3),)),
    ("raw_rank", lambda m, x: raw(m, "Rank", input=x), (f(2, 3),)),
    ("reshape", lambda m, x: m.reshape(x, [3, 2]), (f(2, 3),)),
    ("reshape_infer", lambda m, x: m.reshape(x, [3, -1]), (f(2, 3),)),
    ("reshape_to_dimensions", lambda m, x: m.reshape(x, [m.Dimension(3), m.shape(x)[0]]), (f(2, 3),)),
    ("reshape_flat", lambda m, x: m.reshape(x, [-1]), (f(2, 3),)),
    ("reshape_to_scalar", lambda m, x: m.reshape(x, []), (f(1),)),
    ("reshape_from_scalar", lambda m, x: m.reshape(x, [1, 1]), (f(),)),
    ("reshape_empty", lambda m, x: m.reshape(x, [-1, 3]), (f(0, 3),)),
    ("reshape_packed", lambda m, x: m.reshape(x, m.stack([m.shape(x)[0], 6])), (f(2, 2, 3),)),
    ("reshape_packed_open", lambda m, x: m.reshape(x, m.stack([m.shape(x)[0], -1])), (f(2, 2, 3),)),
    ("reshape_joined", lambda m, x: m.reshape(x, m.concat([m.shape(x)[:1], [6]], 0)), (f(2, 2, 3),)),
    ("reshape_shape_of", lambda m, x, y: m.reshape(x, m.shape(y)), (f(6), f(2, 3))),
    ("reshape_tensor", lambda m, x, s: m.reshape(x, s), (f(6), ints(3, 2))),
    ("reshape_int64", lambda m, x: m.reshape(x, np.array([6], np.int64)), (i(2, 3),)),
    ("reshape_string", lambda m, x: m.reshape(x, [2, 1]), (words(b"a", b"bc"),)),
    ("transpose", lambda m, x: m.transpose(x), (f(2, 3, 4),)),
    ("transpose_perm", lambda m, x: m.transpose(x, [1, 0, 2]), (f(2, 3, 4),)),
    ("transpose_tensor", lambda m, x, p: m.transpose(x, p), (f(2, 3), ints(1, 0))),
    ("transpose_scalar", lambda m, x: m.transpose(x), (f(),)),
    ("transpose_empty", lambda m, x: m.transpose(x), (f(0, 2),)),
    ("transpose_string", lambda m, x: m.transpose(x), (words([b"a", b"b"], [b"c", b"d"]),)),
    ("transpose_conj", lambda m, x: m.transpose(x, conjugate=True), (f(2, 3).astype(np.complex64) * 1j,)),
    ("matrix_transpose", lambda m, x: m.matrix_transpose(x), (f(2, 3, 4),)),
    ("expand_dims", lambda m, x: m.expand_dims(x, 1), (f(2, 3),)),
    ("expand_dims_last", lambda m, x: m.expand_dims(x, -1), (f(2, 3),)),
    ("expand_dims_scalar", lambda m, x: m.expand_dims(x, 0), (f(),)),
    ("expand_dims_tensor", lambda m, x, a: m.expand_dims(x, a), (f(2, 3), np.array(0, np.int32))),
    ("squeeze", lambda m, x: m.squeeze(x), (f(1, 3, 1),)),
    ("squeeze_axis", lambda m, x: m.squeeze(x, [-1]), (f(1, 3, 1),)),
    ("squeeze_int", lambda m, x: m.squeeze(x, 0), (f(1, 3, 1),)),
    ("broadcast_to", lambda m, x: m.broadcast_to(x, [4, 2, 3]), (f(2, 1),)),
    ("broadcast_to_same", lambda m, x: m.broadcast_to(x, [2, 3]), (f(2, 3),)),
    ("broadcast_to_tensor", lambda m, x, s: m.broadcast_to(x, s), (f(1, 3), ints(2, 2, 3))),
    ("broadcast_scalar", lambda m, x: m.broadcast_to(x, [2, 0]), (f(),)),
    ("broadcast_dynamic", lambda m, x, y: m.broadcast_dynamic_shape(x, y), (ints(2, 1), ints(3, 1, 4))),
    ("bitcast", lambda m, x: m.bitcast(x, m.as_dtype("int32")), (f(2, 3),)),
    ("bitcast_smaller", lambda m, x: m.bitcast(x, m.as_dtype("uint8")), (f(2, 3),)),
    ("bitcast_larger", lambda m, x: m.bitcast(x, m.as_dtype("float64")), (f(3, 2),)),
    ("bitcast_scalar", lambda m, x: m.bitcast(x, m.as_dtype("int16")), (f(),)),
    ("snapshot", lambda m, x: raw(m, "Snapshot", input=x), (i(2, 3),)),
    ("ensure_shape", lambda m, x: m.ensure_shape(x, [None, 3]), (f(2, 3),)),
]

JOINS: list[Case] = [
    ("concat", lambda m, x, y: m.concat([x, y], 0), (f(2, 3), f(4, 3))),
    ("concat_negative", lambda m, x, y, z: m.concat([x, y, z], -1), (f(2, 3), f(2, 1), f(2, 0))),
    ("concat_one", lambda m, x: m.concat([x], 0), (f(2, 3),)),
    ("concat_axis_tensor", lambda m, x, y, a: m.concat([x, y], a), (f(2, 3), f(2, 3), np.array(1, np.int32))),
    ("concat_int64_axis", lambda m, x, y: m.concat([x, y], np.int64(1)), (f(2, 3), f(2, 3))),
    ("concat_string", lambda m, x, y: m.concat([x, y], 0), (words(b"a"), words(b"bc", b"d"))),
    ("concat_old", lambda m, x, y: raw(m, "Concat", concat_dim=1, values=[x, y]), (f(2, 3), f(2, 1))),
    ("split", lambda m, x: m.split(x, 2), (f(4, 3),)),
    ("split_axis", lambda m, x: m.split(x, 3, axis=-1), (f(4, 3),)),
    ("split_axis_tensor", lambda m, x, a: m.split(x, 3, axis=a), (f(4, 3), np.array(1, np.int32))),
    ("split_sizes", lambda m, x: m.split(x, [1, 3], axis=0), (f(4, 3),)),
    ("split_sizes_open", lambda m, x: m.split(x, [1, -1, 0], axis=1), (f(4, 3),)),
    ("split_sizes_tensor", lambda m, x, s: m.split(x, s, axis=0, num=2), (f(4, 3), ints(1, 3))),
    ("split_one_used", lambda m, x: m.split(x, 2)[0], (f(4, 3),)),
    ("split_string", lambda m, x: m.split(x, 2), (words(b"a", b"b"),)),
    ("stack", lambda m, x, y: m.stack([x, y]), (f(2, 3), f(2, 3))),
    ("stack_axis", lambda m, x, y: m.stack([x, y, x], axis=-1), (f(2, 3), f(2, 3))),
    ("stack_middle", lambda m, x, y: m.stack([x, y], axis=1), (f(2, 0), f(2, 0))),
    ("stack_scalars", lambda m, x, y: m.stack([x, y]), (f(), f())),
    ("stack_mixed", lambda m, x: m.stack([x, 1.0, 2.0]), (f(),)),
    ("stack_constant", lambda m: m.stack([1, 2, 3]), ()),
    ("stack_string", lambda m, x: m.stack([x, x]), (words(b"a", b"b"),)),
    ("stack_string_scalar", lambda m, x: m.stack([x, x]), (np.array(b"a", dtype=object),)),
    ("unstack", lambda m, x: m.unstack(x), (f(2, 3),)),
    ("unstack_axis", lambda m, x: m.unstack(x, axis=-1), (f(2, 3),)),
    ("unstack_vector", lambda m, x: m.unstack(x, num=3), (f(3),)),
    ("unstack_one_used", lambda m, x: m.unstack(x)[1], (f(2, 3),)),
    ("unstack_string", lambda m, x: m.unstack(x), (words(b"a", b"b"),)),
    ("tile", lambda m, x: m.tile(x, [2, 3]), (f(2, 3),)),
    ("tile_none", lambda m, x: m.tile(x, [1, 1]), (f(2, 3),)),
    ("tile_zero", lambda m, x: m.tile(x, [0, 2]), (f(2, 3),)),
    ("tile_scalar", lambda m, x: m.tile(x, np.zeros(0, np.int32)), (f(),)),
    ("tile_tensor", lambda m, x, n: m.tile(x, n), (f(2, 3), ints(2, 1))),
    ("tile_one", lambda m, x: m.tile(x, [3]), (f(1),)),
    ("tile_string", lambda m, x: m.tile(x, [2]), (words(b"a", b"b"),)),
    ("repeat", lambda m, x: m.repeat(x, 3, axis=1), (f(2, 3),)),
    ("repeat_counts", lambda m, x: m.repeat(x, [2, 0, 1], axis=1), (f(2, 3),)),
    ("repeat_flat", lambda m, x: m.repeat(x, 2), (f(2, 3),)),
    ("repeat_tensor", lambda m, x, n: m.repeat(x, n, axis=0), (f(2, 3), np.array(2, np.int32))),
]

SLICES: list[Case] = [
    ("slice", lambda m, x: m.slice(x, [0, 1], [2, 2]), (f(3, 4),)),
    ("slice_open", lambda m, x: m.slice(x, [1, 0], [-1, 2]), (f(3, 4),)),
    ("slice_empty", lambda m, x: m.slice(x, [3, 0], [0, -1]), (f(3, 4),)),
    ("slice_tensors", lambda m, x, b, s: m.slice(x, b, s), (f(3, 4), ints(1, 0), ints(2, -1))),
    ("slice_size_packed", lambda m, x: m.slice(x, [0, 0], m.stack([m.shape(x)[0], 2])), (f(3, 4),)),
    ("strided", lambda m, x: m.strided_slice(x, [0, 1], [3, 4], [2, 1]), (f(3, 4),)),
    ("strided_no_strides", lambda m, x: m.strided_slice(x, [0, 1], [3, 4]), (f(3, 4),)),
    ("strided_masks", lambda m, x: m.strided_slice(x, [1, 1], [2, 2], [1, 1], begin_mask=1, end_mask=2), (f(3, 4),)),
    ("strided_tensors", lambda m, x, b, e: m.strided_slice(x, b, e, [1, 2]), (f(3, 4), ints(1, 0), ints(3, 4))),
    ("item", lambda m, x: x[1], (f(3, 4),)),
    ("item_last", lambda m, x: x[-1, 2], (f(3, 4),)),
    ("item_tensor", lambda m, x, n: x[n], (f(3, 4), np.array(2, np.int32))),
    ("item_tensor64", lambda m, x, n: x[n, 1:], (f(3, 4), np.array(2, np.int64))),
    ("range", lambda m, x: x[1:3], (f(3, 4),)),
    ("range_clamped", lambda m, x: x[-9:9, 5:], (f(3, 4),)),
    ("range_tensor", lambda m, x, n: x[n:, :2], (f(3, 4), np.array(1, np.int32))),
    ("full_and_tensor", lambda m, x, n: x[:, :n], (f(3, 4), np.array(1, np.int32))),
    ("reversed", lambda m, x: x[::-1, ::-2], (f(3, 4),)),
    ("reversed_bounds", lambda m, x: x[2:0:-1, -1:-9:-1], (f(3, 4),)),
    ("empty", lambda m, x: x[2:1], (f(3, 4),)),
    ("new_axis", lambda m, x: x[:, None, 1:], (f(3, 4),)),
    ("ellipsis", lambda m, x: x[..., 1], (f(2, 3, 4),)),
    ("ellipsis_middle", lambda m, x: x[0, ..., None, 1:3], (f(2, 3, 4),)),
    ("ellipsis_empty", lambda m, x: x[0, ..., 1], (f(3, 4),)),
    ("newaxis_name", lambda m, x: x[m.newaxis], (f(3),)),
    ("scalar_all", lambda m, x: x[...], (f(),)),
    ("scalar_new", lambda m, x: x[None], (f(),)),
    ("mask", lambda m, x: x[x > 0], (f(3, 4),)),
    ("shape_item", lambda m, x: m.shape(x)[1], (f(3, 4),)),
    ("shape_part", lambda m, x: m.shape(x)[1:], (f(3, 4, 5),)),
    ("string_item", lambda m, x: x[1], (words(b"a", b"b"),)),
    ("string_range", lambda m, x: x[1:], (words(b"a", b"b"),)),
    (
        "strided_grad",
        lambda m, g: raw(
            m,
            "StridedSliceGrad",
            shape=ints(3, 4),
            begin=ints(0, 1),
            end=ints(3, 0),
            strides=ints(2, 1),
            dy=g,
            shrink_axis_mask=2,
        ),
        (f(2),),
    ),
]

LISTS: list[Case] = [
    ("operator", lambda m, x, n: x * [n, 2], (f(2), ints(3)[0])),
    ("reversed_operator", lambda m, x, n: [n] - x, (f(2), ints(3)[0])),
    ("integers", lambda m, x, n: x * [[n, 1]], (np.array(2**40), ints(3)[0])),
    ("wrapped", lambda m, x, n: x * [n], (np.array(1, np.uint8), ints(300)[0])),
    ("truncated", lambda m, x, n: n - [x], (np.array(1.75, np.float32), ints(3)[0])),
    ("matmul", lambda m, x, n: m.matmul(x, [[n], [1]]), (f(2, 2), ints(3)[0])),
    ("concat", lambda m, x, n: m.concat([[n, 1], x], 0), (f(2), ints(3)[0])),
    ("stack", lambda m, x, n: m.stack([x, [n, 1]]), (f(2), ints(3)[0])),
    ("where", lambda m, x, n: m.where([True, False], x, [n, 1]), (f(2), ints(3)[0])),
    ("converted", lambda m, x, n: m.convert_to_tensor([[x], [n]], "float64"), (f(), ints(3)[0])),
    ("fill", lambda m, x, n: m.fill([n, 2], x), (f(), np.array(3))),
    ("zeros", lambda m, n, k: m.zeros([n, k]), (np.array(3), ints(2)[0])),
    ("reshape", lambda m, x, n, k: m.reshape(x, [n, k]), (f(6), np.array(3), ints(2)[0])),
    ("tile", lambda m, x, n, k: m.tile(x, [n, k]), (f(1, 2), np.array(3), ints(2)[0])),
    ("slice", lambda m, x, n, k: m.slice(x, [n], [k]), (f(6), np.array(3), ints(2)[0])),
    ("index_of_array", lambda m, x: x[np.asarray(1)], (f(3, 2),)),
    ("index_of_arrays", lambda m, x: x[np.asarray(1, np.int32) :, np.asarray(-1)], (f(3, 2),)),
    ("shape_without_sizes", lambda m: m.convert_to_tensor(m.TensorShape([])), ()),
    ("shape_without_sizes_joined", lambda m: m.concat([m.TensorShape([]), [2]], 0), ()),
    ("constant_without_elements", lambda m: m.constant(1.5, shape=[2, 0]), ()),
    ("constants_without_elements", lambda m: m.constant([1, 2], "int64", shape=[0]), ()),
]

PADS: list[Case] = [
    ("pad", lambda m, x: m.pad(x, [[1, 2], [0, 1]]), (f(2, 3),)),
    ("pad_value", lambda m, x: m.pad(x, [[1, 2], [0, 1]], constant_values=3.0), (f(2, 3),)),
    ("pad_value_tensor", lambda m, x, v: m.pad(x, [[1, 2], [0, 1]], constant_values=v), (f(2, 3), f())),
    ("pad_tensor", lambda m, x, p: m.pad(x, p), (f(2, 3), ints([1, 0], [0, 2]))),
    ("pad_empty", lambda m, x: m.pad(x, [[1, 0], [0, 1]]), (f(0, 2),)),
    ("pad_int", lambda m, x: m.pad(x, [[1, 1]]), (i(3),)),
    ("pad_reflect", lambda m, x: m.pad(x, [[1, 1], [2, 0]], mode="REFLECT"), (f(2, 3),)),
    ("pad_symmetric", lambda m, x: m.pad(x, [[2, 1], [3, 0]], mode="SYMMETRIC"), (f(2, 3),)),
    ("pad_mirror_none", lambda m, x: m.pad(x, [[0, 0], [0, 0]], mode="REFLECT"), (f(2, 3),)),
    (
        "mirror_grad",
        lambda m, x: raw(m, "MirrorPadGrad", input=x, paddings=ints([1, 1], [2, 0]), mode="REFLECT"),
        (f(4, 5),),
    ),
    ("space_to_depth", lambda m, x: m.space_to_depth(x, 2), (f(2, 4, 6, 3),)),
    ("depth_to_space", lambda m, x: m.depth_to_space(x, 2), (f(2, 2, 3, 8),)),
    ("space_to_batch_nd", lambda m, x: m.space_to_batch_nd(x, [2, 3], [[1, 1], [0, 2]]), (f(2, 4, 4, 3),)),
    ("space_to_batch_1", lambda m, x: m.space_to_batch_nd(x, [2], [[0, 0]]), (f(2, 4),)),
    ("batch_to_space_nd", lambda m, x: m.batch_to_space_nd(x, [2, 3], [[1, 1], [0, 2]]), (f(12, 3, 2, 3),)),
    ("space_to_batch", lambda m, x: m.space_to_batch(x, [[0, 0], [1, 1]], 2), (f(1, 4, 4, 1),)),
    ("batch_to_space", lambda m, x: m.batch_to_space(x, [[0, 0], [1, 1]], 2), (f(4, 2, 3, 1),)),
    (
        "required_paddings",
        lambda m: list(m.required_space_to_batch_paddings([7, 5], [2, 4], [[1, 0], [0, 0]])),
        (),
    ),
]

MAKES: list[Case] = [
    ("fill", lambda m: m.fill([2, 3], 7.0), ()),
    ("fill_tensor", lambda m, d, v: m.fill(d, v), (ints(2, 0), f())),
    ("fill_scalar", lambda m, v: m.fill(np.zeros(0, np.int32), v), (f(),)),
    ("fill_gradient", lambda m, v: m.fill([2, 3], v), (f(),)),
    ("fill_string", lambda m: m.fill([2], "ab"), ()),
    ("fill_zero", lambda m, d: m.fill(d, 0.0), (ints(2, 3),)),
    ("zeros", lambda m: m.zeros([2, 3]), ()),
    ("zeros_large", lambda m: m.zeros([50, 50], m.as_dtype("int64")), ()),
    ("zeros_string", lambda m: m.zeros([2], m.as_dtype("string")), ()),
    ("zeros_tensor", lambda m, d: m.zeros(d), (ints(2, 3),)),
    ("zeros_shape", lambda m, x: m.zeros(m.shape(x)), (f(2, 3),)),
    ("zeros_packed", lambda m, x: m.zeros([m.shape(x)[0], 4]), (f(2, 3),)),
    ("ones_packed", lambda m, x: m.ones(m.stack([m.shape(x)[0], 4])), (f(2, 3),)),
    ("ones", lambda m: m.ones([2, 3], m.as_dtype("bool")), ()),
    ("ones_scalar", lambda m: m.ones([]), ()),
    ("zeros_like", lambda m, x: m.zeros_like(x), (f(2, 3),)),
    ("zeros_like_dtype", lambda m, x: m.zeros_like(x, dtype=m.as_dtype("int64")), (f(2, 3),)),
    ("zeros_like_run", lambda m, x: m.zeros_like(x, optimize=False), (f(2, 3),)),
    ("zeros_like_bool", lambda m, x: m.zeros_like(x, optimize=False), (np.array([True, False]),)),
    ("zeros_like_string", lambda m, x: m.zeros_like(x, optimize=False), (words(b"a"),)),
    ("ones_like", lambda m, x: m.ones_like(x), (i(2, 3),)),
    ("ones_like_run", lambda m, x: m.ones_like(x, optimize=False), (i(2, 3),)),
    ("range", lambda m: m.range(5), ()),
    ("range_step", lambda m: m.range(3, 18, 4), ()),
    ("range_down", lambda m: m.range(5, -3, -2), ()),
    ("range_empty", lambda m: m.range(3, 3), ()),
    ("range_float", lambda m: m.range(0.0, 1.0, 0.3), ()),
    ("range_mixed", lambda m, n: m.range(n, 4.5), (np.array(1, np.int32),)),
    ("range_dtype", lambda m: m.range(5, dtype=m.as_dtype("float64")), ()),
    ("range_int64", lambda m, n: m.range(n), (np.array(4, np.int64),)),
    ("range_tensor", lambda m, n: m.range(n), (np.array(4, np.int32),)),
    ("linspace", lambda m: m.linspace(1.0, 3.0, 5), ()),
    ("linspace_one", lambda m: m.lin_space(1.0, 3.0, 1), ()),
    ("linspace_tensors", lambda m, a, n: m.linspace(a, 3.0, n), (f(), np.array(4, np.int32))),
    ("one_hot", lambda m, x: m.one_hot(x, 4), (ints(0, 3, -1, 4),)),
    ("one_hot_axis", lambda m, x: m.one_hot(x, 3, axis=0), (i(2, 3, high=3),)),
    ("one_hot_middle", lambda m, x: m.one_hot(x, 3, axis=1), (i(2, 3, high=3),)),
    ("one_hot_values", lambda m, x: m.one_hot(x, 3, on_value=5, off_value=-1), (i(4, high=3),)),
    ("one_hot_off", lambda m, x: m.one_hot(x, 3, off_value=2.0), (i(4, high=3),)),
    ("one_hot_dtype", lambda m, x: m.one_hot(x, 3, dtype=m.as_dtype("bool"), on_value=True, off_value=False), (i(4),)),
    ("one_hot_int", lambda m, x: m.one_hot(x, 3, dtype=m.as_dtype("int64")), (i(4, high=3).astype(np.uint8),)),
    ("one_hot_scalar", lambda m, x: m.one_hot(x, 3), (np.array(1, np.int64),)),
    ("one_hot_depth", lambda m, x, d: m.one_hot(x, d), (i(4, high=3), np.array(3, np.int32))),
    ("one_hot_string", lambda m, x: m.one_hot(x, 3, on_value="y", off_value="n"), (i(4, high=3),)),
    ("sequence_mask", lambda m, n: m.sequence_mask(n, 4), (ints(0, 2, 4),)),
    ("sequence_mask_max", lambda m, n: m.sequence_mask(n), (ints([1, 2], [0, 3]),)),
    ("sequence_mask_dtype", lambda m, n: m.sequence_mask(n, 3, m.as_dtype("float32")), (ints(1, 2),)),
    ("meshgrid", lambda m, a, b: m.meshgrid(a, b), (f(2), f(3))),
    ("meshgrid_ij", lambda m, a, b, c: m.meshgrid(a, b, c, indexing="ij"), (f(2), f(3), f(1))),
]


def _params(cases: list[Case]) -> list[Any]:
    return [pytest.param(name, build, arrays, id=name) for name, build, arrays in cases]


# Cases whose gradients are not compared, and the reason.
NO_GRADIENT = {
    "bitcast_larger": "TensorFlow raises instead of passing nothing back",
    "concat_int64_axis": "TensorFlow's rule mixes int32 and int64 and raises",
    "pad_value_tensor": "TensorFlow passes nothing back to constant_values; aioflow differs on purpose",
}


@pytest.mark.parametrize(("name", "build", "arrays"), _params(SHAPES + JOINS + SLICES + LISTS + PADS + MAKES))
def test_array(parity: Any, name: str, build: Any, arrays: Any) -> None:
    parity(build, *arrays, grad=name not in NO_GRADIENT)


# The counts are constants, so the length is known; in TensorFlow it is unknown.
KNOWN_BETTER = {"repeat_counts"}


@pytest.mark.parametrize(("name", "build", "arrays"), _params(SHAPES + JOINS + SLICES + LISTS + PADS + MAKES))
def test_open_shapes(parity: Any, tf: Any, name: str, build: Any, arrays: Any) -> None:
    check_open_shapes(parity, tf, build, arrays, grad=name not in NO_GRADIENT, static=name not in KNOWN_BETTER)


def check_open_shapes(parity: Any, tf: Any, build: Any, arrays: Any, **how: Any) -> None:
    # Without static sizes, gradients must read shapes at run time.
    shapes = [[None] * np.ndim(a) for a in arrays]
    try:
        with tf.Graph().as_default():
            build(tf, *[tf.placeholder(_name(a), s) for a, s in zip(arrays, shapes, strict=True)])
    except ValueError:
        with aioflow.Graph().as_default(), pytest.raises(aioflow.errors.InvalidArgumentError):
            build(aioflow, *[aioflow.placeholder(_name(a), s) for a, s in zip(arrays, shapes, strict=True)])
        return
    parity(build, *arrays, shapes=shapes, **how)


def _name(array: Any) -> str:
    return "string" if array.dtype == object else array.dtype.name


DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float64", "bfloat16", "complex64", "complex128"]
MOVES: list[Case] = [
    ("reshape", lambda m, x: m.reshape(x, [6]), ()),
    ("transpose", lambda m, x: m.transpose(x), ()),
    ("concat", lambda m, x: m.concat([x, x], 1), ()),
    ("stack", lambda m, x: m.stack([x, x], 1), ()),
    ("tile", lambda m, x: m.tile(x, [1, 2]), ()),
    ("pad", lambda m, x: m.pad(x, [[1, 0], [0, 1]]), ()),
    ("mirror", lambda m, x: m.pad(x, [[1, 0], [0, 1]], "SYMMETRIC"), ()),
    ("getitem", lambda m, x: x[1:, ::-1], ()),
    ("ones_like", lambda m, x: m.ones_like(x, optimize=False), ()),
    ("zeros_like", lambda m, x: m.zeros_like(x, optimize=False), ()),
    ("gather", lambda m, x: m.gather(x, [1, 0], axis=1), ()),
    ("where", lambda m, x: m.where_v2([[True], [False]], x, m.zeros_like(x)), ()),
    ("reverse", lambda m, x: m.reverse(x, [1]), ()),
    ("roll", lambda m, x: m.roll(x, 1, 0), ()),
    ("one_hot", lambda m, x: m.one_hot([0, 1], 2, on_value=x[0, 0], off_value=x[1, 1]), ()),
    ("fill", lambda m, x: m.fill([2, 2], x[0, 0]), ()),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("build", [pytest.param(b, id=n) for n, b, _ in MOVES])
def test_dtypes(request: pytest.FixtureRequest, parity: Any, build: Any, dtype: str) -> None:
    array = np.arange(-2, 4).reshape(2, 3).astype(aioflow.as_dtype(dtype).np_dtype)
    if request.node.callspec.id.startswith("tile") and dtype == "uint16":
        pytest.skip("TensorFlow has no Tile kernel for uint16")
    parity(build, array, grad=dtype in ("float16", "float64", "bfloat16"), rtol=1e-2 if "16" in dtype else 1e-6)


@pytest.mark.parametrize("data_format", ["NHWC"])
@pytest.mark.parametrize("block", [2, 3])
def test_depth_round_trip(parity: Any, block: int, data_format: str) -> None:
    parity(lambda m, x: m.depth_to_space(m.space_to_depth(x, block), block), f(1, 6, 6, 2))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64", "int32", "int64"])
def test_range_dtypes(parity: Any, dtype: str) -> None:
    parity(
        lambda m: raw(m, "Range", start=m.cast(1, dtype), limit=m.cast(9, dtype), delta=m.cast(2, dtype)), grad=False
    )


def test_unknown_ranks(parity: Any) -> None:
    # Compares the static shapes that can be inferred even though the rank of the input is unknown.
    x = f(2, 3)
    for build in (
        lambda m, x: m.reshape(x, [3, 2]),
        lambda m, x: m.reshape(x, [-1, 2]),
        lambda m, x: m.transpose(x, [1, 0]),
        lambda m, x: m.transpose(x),
        lambda m, x: m.expand_dims(x, 0),
        lambda m, x: m.squeeze(m.expand_dims(x, 0)),
        lambda m, x: m.concat([x, m.zeros([1, 3])], 0),
        lambda m, x: m.stack([x, m.zeros([2, 3])]),
        lambda m, x: m.tile(x, [2, 1]),
        lambda m, x: m.pad(x, [[1, 0], [0, 1]]),
        lambda m, x: m.slice(x, [0, 0], [1, 2]),
        lambda m, x: m.broadcast_to(x, [2, 3]),
        lambda m, x: m.shape(x),
        lambda m, x: m.size(x),
        lambda m, x: m.rank(x),
        lambda m, x: m.zeros_like(x),
        lambda m, x: x[0, :2],
        lambda m, x: x[..., 0],
        lambda m, x: m.matrix_transpose(x),
        lambda m, x: m.gather(x, [0, 1]),
        lambda m, x: m.where(x > 0),
    ):
        parity(build, x, shapes=[None])
