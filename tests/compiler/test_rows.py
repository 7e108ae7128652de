"""Batch proofs: graphs proven or refuted to keep rows independent, and proven graphs checked row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aioflow as af
from aioflow.compiler.rows import row_verdict
from aioflow.graph.rows import RowDependence

Build = Callable[[Any], Any]
RNG = np.random.default_rng(0)


def weights(*shape: int) -> Any:
    return af.constant(RNG.standard_normal(shape).astype(np.float32))


def batch_size(x: Any) -> Any:
    return af.shape(x)[0]


def floats(x: Any) -> Any:
    return af.cast(x, af.float32)


def least(x: Any, number: int, more: int = 0) -> Any:
    """Return min(rows, `number`) + `more`, as a size that static analysis does not know."""
    return af.shape(af.range(af.minimum(batch_size(x), number) + more))[0]


def after(x: Any, build: Callable[[], Any]) -> Any:
    with af.control_dependencies([x]):
        return build()


def written_meanwhile(x: Any) -> Any:
    first = af.TensorArray(af.float32, 2, clear_after_read=False, infer_shape=False).write(0, weights(1, 1))
    second = first.write(1, af.reduce_mean(x) * af.ones([1, 1]))
    element = after(second.flow, lambda: first.read(1))
    element.set_shape([1, 1])
    return x * element


def transposed(x: Any, factor: Any, size: Any) -> Any:
    return af.nn.conv2d_transpose(
        af.expand_dims(x, 3), weights(2, 2, 1, 1) * floats(factor), af.stack([batch_size(x), size, 16, 1]), 2, "SAME"
    )


def attention(x: Any) -> Any:
    """Apply attention with two heads to [rows, 6, 8], with sizes taken from the shape."""
    size, length = batch_size(x), af.shape(x)[1]
    parts = [
        af.transpose(af.reshape(af.tensordot(x, weights(8, 8), 1), [size, length, 2, 4]), [0, 2, 1, 3]) for _ in "qkv"
    ]
    scores = af.nn.softmax(af.matmul(parts[0], parts[1], transpose_b=True) * 0.5)
    together = af.transpose(af.matmul(scores, parts[2]), [0, 2, 1, 3])
    return x + af.reshape(together, [size, length, 8])


def recurrent(x: Any) -> Any:
    """Return the last state of a loop over the time axis, plus the sum of all states."""
    steps = af.TensorArray(af.float32, 6).unstack(af.transpose(x, [1, 0, 2]))
    begin = af.zeros([batch_size(x), 8])

    def body(i: Any, state: Any, found: Any) -> Any:
        state = af.tanh(af.matmul(state, weights(8, 8)) + steps.read(i))
        return i + 1, state, found.write(i, state)

    _, last, found = af.while_loop(
        lambda i, *_: i < 6, body, [0, begin, af.TensorArray(af.float32, 6)], shape_invariants=[[], [None, 8], None]
    )
    return last + af.reduce_sum(af.transpose(found.stack(), [1, 0, 2]), 1)


def counted(x: Any, by_rows: bool = False, reads: bool = False) -> Any:
    """Return `x` after an update of a variable in the same step."""
    count = af.Variable(np.float32(0))
    with af.control_dependencies([af.assign_add(count, af.reduce_sum(x) if by_rows else 1.0)]):
        return x + count.read_value() if reads else af.identity(x)


def normalized(x: Any, training: bool) -> Any:
    image = af.expand_dims(x, 3)
    return af.nn.fused_batch_norm(
        image, weights(1), weights(1), mean=weights(1), variance=af.abs(weights(1)), is_training=training
    )[0]


# Each builder receives a float32 tensor [rows, 6, 8].
PROVEN: dict[str, Build] = {
    "elementwise": lambda x: af.tanh(x * 2.0 + weights(6, 8)) - x,
    "a dense layer": lambda x: af.nn.softmax(af.matmul(af.reshape(x, [-1, 48]), weights(48, 3)) + weights(3)),
    "a dense layer of each place": lambda x: af.tensordot(x, weights(8, 3), 1),
    "a mean over the rest": lambda x: af.reduce_mean(x, [1, 2]),
    "a convolution": lambda x: af.nn.relu(af.nn.conv2d(af.expand_dims(x, 3), weights(3, 3, 1, 2), 1, "SAME")),
    "a transposed convolution": lambda x: af.nn.conv2d_transpose(
        af.expand_dims(x, 3), weights(3, 3, 2, 1), [batch_size(x), 12, 16, 2], 2
    ),
    "inference by batch normalization": lambda x: normalized(x, training=False),
    "attention": attention,
    "a loop over time": recurrent,
    "einsum": lambda x: af.einsum("bij,jk->kbi", x, weights(8, 5)) [0],
    "a look-up": lambda x: af.gather(weights(5, 3), af.cast(af.abs(x[:, 0, 0]), af.int32) % 5),
    "one hot": lambda x: af.one_hot(af.argmax(x, 2), 8),
    "a token in front of each": lambda x: af.concat([af.tile(weights(1, 1, 8), [batch_size(x), 1, 1]), x], 1),
    "filled": lambda x: x + af.fill([batch_size(x), 6, 1], 2.0),
    "parts": lambda x: af.concat(af.split(x[..., ::-1], 2, axis=2), 1),
    "stacked and unstacked": lambda x: af.stack(af.unstack(x, axis=1), axis=2),
    "the largest": lambda x: af.nn.top_k(x, 2)[0],
    "a sum along each": lambda x: af.cumsum(x, 1),
    "a choice": lambda x: af.where(af.reduce_sum(x, [1, 2]) > 0, x[:, 0, 0], -x[:, 0, 1]),
    "a place of each that is fed": lambda x: x[:, af.placeholder_with_default(3, [])],
    "whether a class is one of the best": lambda x: af.raw_ops.InTopKV2(
        predictions=x[:, 0], targets=af.argmax(x[:, 1], 1), k=af.constant(2, af.int64)
    ),
    "counts of each row": lambda x: af.raw_ops.DenseBincount(
        input=af.argmax(x, 2), size=af.constant(8, af.int64), weights=af.zeros([0])
    ),
    "counts of each row with weights": lambda x: af.raw_ops.DenseBincount(
        input=af.argmax(x, 2), size=af.constant(8, af.int64), weights=x[:, :, 0]
    ),
    "sums of parts of each": lambda x: af.transpose(
        af.segment_sum(af.transpose(x, [1, 0, 2]), [0, 0, 1, 1, 1, 2]), [1, 0, 2]
    ),
    "the contrast of channels that are rows": lambda x: af.transpose(
        af.image.adjust_contrast(af.transpose(af.expand_dims(x, 3), [3, 1, 2, 0]), 0.5), [3, 1, 2, 0]
    ),
    "what sums lead to": lambda x: af.gradients(af.reduce_sum(x * x), x)[0],
    "padding": lambda x: af.pad(x, [[0, 0], [1, 1], [0, 2]]),
    "a part up to where no batch ends": lambda x: x[: 10**9, 1:],
    "reversed up to its length": lambda x: af.reverse_sequence(x, af.cast(af.abs(x[:, 0, 0]), af.int32) % 6, 1, 0),
    "a shape that copies sizes of 0": lambda x: af.reshape(
        x, af.where_v2(af.equal(af.stack([batch_size(x), 0]), 0), af.shape(x)[:2] * 8, af.stack([batch_size(x), 1]))
    ),
    "a variable": lambda x: x * af.Variable(weights(8)),
    "beside what changes whatever the rows are": counted,
    "sizes by arithmetic": lambda x: af.reshape(
        af.reshape(x, af.stack([af.reduce_prod(af.shape(x)[:2]), 8])),
        [batch_size(x) * 12 // 12, af.size(x) // batch_size(x)],
    ),
    "squeezed": lambda x: af.squeeze(af.expand_dims(x, 1), [1]),
    "a branch of constants by what is fixed": lambda x: x * af.cond(
        af.placeholder_with_default(True, []), lambda: 2.0, lambda: 3.0
    ),
    "a branch beside one of all rows": lambda x: after(
        af.cond(af.reduce_mean(x) > 0, lambda: 2.0, lambda: 3.0),
        lambda: x * af.cond(af.placeholder_with_default(True, []), lambda: 2.0, lambda: 3.0),
    ),
    "a branch by what is fixed": lambda x: af.cond(af.placeholder_with_default(True, []), lambda: x, lambda: -x),
}  # fmt: skip
REFUTED: dict[str, tuple[Build, str]] = {
    "the mean of the batch": (lambda x: x - af.reduce_mean(x, 0), "several rows"),
    "training by batch normalization": (lambda x: normalized(x, training=True), "statistics of the batch"),
    "a softmax over the batch": (lambda x: af.nn.softmax(x, axis=0), "several rows"),
    "a sum along the batch": (lambda x: af.cumsum(x, 0), "several rows"),
    "every row with every other": (lambda x: af.matmul(x[:, 0], x[:, 0], transpose_b=True), "by each other"),
    "rows added up": (lambda x: af.matmul(x[:, 0], x[:, 0], transpose_a=True), "by each other"),
    "a row that is fed": (lambda x: x + x[af.placeholder_with_default(0, [])], "picks"),
    "counts of all": (
        lambda x: af.raw_ops.DenseBincount(
            input=af.argmax(x[:, 0], 1), size=af.constant(8, af.int64), weights=af.zeros([0])
        ),
        "several rows",
    ),
    "sums of rows": (lambda x: af.segment_sum(x, af.cast(x[:, 0, 0] > 0, af.int32)), "several rows"),
    "another order": (lambda x: af.reverse(x, [0]), "several rows"),
    "the first row": (lambda x: x + x[:1], "picks"),
    "the last row": (lambda x: x - x[-1], "picks"),
    "as many as a value says": (lambda x: af.boolean_mask(x, x[:, 0, 0] >= 0), "depends on values"),
    "repeated": (lambda x: af.repeat(x, 1 + af.cast(af.sign(x[:, 0, 0]), af.int32), axis=0), "several rows"),
    "a variable that is changed by the rows": (lambda x: counted(x, by_rows=True), "depending on the rows"),
    "a change that is made by the rows, or not": (
        lambda x: after(
            af.cond(af.reduce_mean(x) > 0, lambda: af.assign_add(af.Variable(0.0), 1.0), lambda: 0.0), lambda: x * 2.0
        ),
        "depending on the rows",
    ),
    "a variable that the step changes": (lambda x: counted(x, reads=True), "reads state that the step changes"),
    "what a queue gives": (
        lambda x: x + af.FIFOQueue(1, ["float32"], [()]).dequeue(), "changes shared state"
    ),
    "rows along axis 1": (lambda x: af.transpose(x, [1, 0, 2]), "along axis 1"),
    "rows that are cut up": (lambda x: af.reshape(x, [-1, 8]), "6 rows"),
    "squeezed by what is there": (lambda x: af.squeeze(af.expand_dims(x, 1)), "size 1"),
    "a branch of constants by all rows": (
        lambda x: x * af.cond(af.reduce_mean(x) > 0, lambda: 2.0, lambda: 3.0), "several rows"
    ),
    "a loop until all are done": (
        lambda x: af.while_loop(lambda y: af.reduce_any(y < 9.0), lambda y: y + 1.0, [x]), "several rows"
    ),
}  # fmt: skip
UNKNOWN: dict[str, Build] = {
    "what does not depend on it": lambda x: weights(2, 3),
    "the number of rows": lambda x: x / af.cast(batch_size(x), af.float32),
    "rows behind one another": lambda x: af.split(af.concat([x, -x], 0), 2)[0],
    "a function of Python": lambda x: af.py_func(lambda v: v, [x], af.float32, stateful=False),
    "a constant with a size of its own": lambda x: x + weights(3, 6, 8),
    "a shape that is fed": lambda x: af.reshape(x, af.placeholder_with_default([1, 48], [2])),
    "a part that is fed": lambda x: x[af.placeholder_with_default(0, []) :],
    "a part that is fed, as sizes": lambda x: af.slice(x, [0, 0, 0], af.placeholder_with_default([1, 6, 8], [3])),
    "dropout, which may be switched off": lambda x: af.nn.dropout(x, rate=af.placeholder_with_default(0.0, [])),
    "rows in groups": lambda x: af.reshape(x, [-1, 96]),
    "filled with the number of rows": lambda x: x + af.fill([batch_size(x), 6, 1], floats(batch_size(x))),
    "a part of each as long as the batch": lambda x: af.reduce_sum(x[:, : batch_size(x)], 1),
    "a slice of each by the number of rows": lambda x: af.reduce_sum(
        af.slice(x, [0, 0, 0], af.stack([-1, least(x, 6), 8])), 1
    ),
    "parts of each by the number of rows": lambda x: af.reduce_max(
        af.reshape(x, af.stack([batch_size(x), least(x, 2), -1])), 2
    ),
    "a branch of constants by the number of rows": lambda x: x * af.cond(batch_size(x) > 1, lambda: 2.0, lambda: 3.0),
    "the length of a list of as many elements": lambda x: (
        x * floats(af.TensorArray(af.int32, 0, dynamic_size=True).unstack(af.range(batch_size(x))).size())
    ),
    "a rank that depends on the number of rows": lambda x: (
        x * floats(af.rank(af.reshape(weights(1), af.fill([batch_size(x)], 1))))
    ),
    "a choice by a size that is not known": lambda x: (
        x * floats(af.where_v2(af.equal(af.shape(af.range(batch_size(x)))[0], 3), 2, 5))
    ),
    "where a size that is not known is": lambda x: (
        x * floats(af.shape(af.where(af.equal(af.shape(af.range(batch_size(x))), [3])))[0])
    ),
    "a choice by a size that may be 0": lambda x: x[
        : af.where_v2(af.shape(af.placeholder_with_default([0], [None])) - 5 > -1, af.shape(x)[:1], [1])[0]
    ],
    "an element of a list that has none": lambda x: af.cond(
        af.placeholder_with_default(True, []), lambda: x, lambda: af.TensorArray(af.float32, 1).read(0)
    ),
    "a part whose ends are rows": lambda x: af.strided_slice(
        x, [0, 0], af.cast(x[:, 0, 0], af.int32), [1, 1], ellipsis_mask=1, end_mask=2
    ),
    "an element that was written by a node that is waited for": written_meanwhile,
    "parts by values that are put together again": lambda x: af.nn.embedding_lookup(
        [weights(3, 3), weights(3, 3)], af.cast(af.abs(x[:, 0, 0]), af.int32) % 5
    ),
    "a transposed convolution by the number of rows": lambda x: transposed(x, batch_size(x), 12),
    "a transposed convolution to a size by the number of rows": lambda x: af.reduce_sum(
        transposed(x, 1, least(x, 2, 10)), [1, 2, 3]
    ),
    "rows that are as many as a shape says": lambda x: af.ensure_shape(x, [3, 6, 8]),
}


def verdict(build: Build) -> Any:
    x = af.placeholder("float32", [None, 6, 8])
    return row_verdict([x], [build(x)])


@pytest.mark.parametrize("build", PROVEN.values(), ids=PROVEN)
async def test_proven_batch_equals_its_rows_run_alone(build: Build) -> None:
    x = af.placeholder("float32", [None, 6, 8])
    y = build(x)
    found = row_verdict([x], [y])
    assert found.is_proven, found
    values = np.random.default_rng(1).standard_normal((3, 6, 8)).astype(np.float32)
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        together = await session.run(y, {x: values})
        alone = [await session.run(y, {x: values[i : i + 1]}) for i in range(3)]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("build", "why"), REFUTED.values(), ids=REFUTED)
def test_batch_that_mixes_rows_is_refuted_with_the_node(build: Build, why: str) -> None:
    found = verdict(build)
    assert found.is_refuted, found
    assert why in str(found)
    assert found.op is not None
    assert found.op.source is not None
    assert "test_rows" in str(found.op.source)


@pytest.mark.parametrize("build", UNKNOWN.values(), ids=UNKNOWN)
def test_undecided_batch_is_unknown(build: Build) -> None:
    assert verdict(build).kind is RowDependence.UNKNOWN


# ── random graphs ────────────────────────────────────────────────────────────────────────────────────────────────────


def _axis(x: Any, rng: np.random.Generator) -> int:
    return int(rng.integers(len(x.shape)))


def _order(x: Any, rng: np.random.Generator) -> list[int]:
    return [int(i) for i in rng.permutation(len(x.shape))]


def _merged(x: Any, rng: np.random.Generator) -> Any:
    """Merge an axis of `x` with the next one."""
    sizes, axis = x.shape.as_list(), _axis(x, rng)
    around = sizes[axis : axis + 2]
    size = -1 if None in around else int(np.prod(around))
    rest = [batch_size(x) if d is None and size != -1 else -1 if d is None else d for d in sizes]
    return af.reshape(x, [*rest[:axis], size, *rest[axis + 2 :]])


def _parted(x: Any, rng: np.random.Generator) -> Any:
    """Split an axis of `x` into two."""
    sizes, axis = x.shape.as_list(), _axis(x, rng)
    rest = [-1 if d is None else d for d in sizes]
    return af.reshape(x, [*rest[:axis], *((2, -1) if None not in sizes else (2, rest[axis] // 2)), *rest[axis + 1 :]])


def _some(x: Any, rng: np.random.Generator) -> Any:
    items: list[Any] = [slice(None)] * len(x.shape)
    items[_axis(x, rng)] = [slice(1, None), 0, slice(None, None, -1), slice(0, None)][int(rng.integers(4))]
    return x[tuple(items)]


def _size(x: Any, rng: np.random.Generator) -> Any:
    """Return a size that may depend on the number of rows or on their values."""
    made: list[Callable[[], Any]] = [
        lambda: af.shape(x)[_axis(x, rng)],
        lambda: least(x, 2),
        lambda: af.minimum(batch_size(x), 2),
        lambda: af.placeholder_with_default(2, []),
        lambda: af.cast(af.reduce_max(x) > 0.5, af.int32) + 1,
    ]
    return made[int(rng.integers(len(made)))]()


def _up_to(x: Any, rng: np.random.Generator) -> Any:
    items: list[Any] = [slice(None)] * len(x.shape)
    items[_axis(x, rng)] = slice(None, _size(x, rng))
    return x[tuple(items)]


def _looped(x: Any, rng: np.random.Generator) -> Any:
    invariants = [af.TensorShape([]), af.TensorShape([None] * len(x.shape))]
    size = _size(x, rng)
    return af.while_loop(lambda i, _: i < size, lambda i, y: (i + 1, y * 1.1 + x), [0, x], shape_invariants=invariants)[
        1
    ]


def _listed(x: Any, rng: np.random.Generator) -> Any:
    array = af.TensorArray(af.float32, 2, clear_after_read=False, infer_shape=False)
    array = array.write(0, x).write(1, af.reverse(x, [_axis(x, rng)]))
    return array.stack() if rng.random() < 0.5 else array.read(_size(x, rng) - 1)


STEPS: list[Callable[[Any, np.random.Generator], Any]] = [
    lambda x, rng: x * af.cond(_size(x, rng) > 1, lambda: 2.0, lambda: 3.0),
    lambda x, rng: af.cond(_size(x, rng) > 1, lambda: af.tanh(x), lambda: x * 2.0),
    lambda x, rng: x + af.fill([batch_size(x), *([1] * (len(x.shape) - 1))], floats(_size(x, rng))),
    _up_to,
    _looped,
    _listed,
    lambda x, rng: af.tanh(x),
    lambda x, rng: x + af.reduce_sum(x, _axis(x, rng), keepdims=True),
    lambda x, rng: af.reduce_mean(x, _axis(x, rng)),
    lambda x, rng: af.cumsum(x, _axis(x, rng)),
    lambda x, rng: af.transpose(x, _order(x, rng)),
    lambda x, rng: af.expand_dims(x, _axis(x, rng)),
    lambda x, rng: af.concat([x, -x], _axis(x, rng)),
    lambda x, rng: af.split(x, 2, _axis(x, rng))[1],
    lambda x, rng: af.stack([x, x * 2.0], _axis(x, rng)),
    lambda x, rng: af.gather(x, [1, 0, 1], axis=_axis(x, rng)),
    lambda x, rng: af.reverse(x, [_axis(x, rng)]),
    lambda x, rng: af.argmax(x, _axis(x, rng), output_type=af.int32) * 1.0,
    lambda x, rng: af.nn.softmax(x, axis=_axis(x, rng)),
    lambda x, rng: af.matmul(x, x, transpose_b=True),
    lambda x, rng: af.matmul(x, x, transpose_a=True),
    lambda x, rng: af.tensordot(x, weights(x.shape.as_list()[-1], 3), 1),
    lambda x, rng: af.tile(x, [1 + (i == _axis(x, rng)) for i in range(len(x.shape))]),
    lambda x, rng: x + af.transpose(x, _order(x, rng)),
    lambda x, rng: af.nn.top_k(x, 2)[0],
    _merged,
    _parted,
    _some,
]


def random_graph(x: Any, rng: np.random.Generator) -> Any:
    """Return a few random steps, each applied to an earlier result. Skip steps that cannot be built."""
    made = [x]
    for _ in range(int(rng.integers(1, 7))):
        source = made[-1] if rng.random() < 0.8 else made[int(rng.integers(len(made)))]
        try:
            made.append(STEPS[int(rng.integers(len(STEPS)))](source, rng))
        except (af.OpError, TypeError, ValueError, IndexError):
            continue
    return made[-1]


@given(st.integers(0, 2**32 - 1))
def test_random_proven_batch_equals_its_rows_run_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [None, 4, 2])
        y = random_graph(x, rng)
        if not row_verdict([x], [y]).is_proven:
            return
    values = rng.standard_normal((3, 4, 2)).astype(np.float32)
    with af.Session(graph=graph) as session:
        try:
            alone = [session.run_sync(y, {x: values[i : i + 1]}) for i in range(3)]
        except af.OpError:
            return  # for example a reshape to a size that no batch has
        together = session.run_sync(y, {x: values})
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-4, atol=1e-4)


def test_random_graphs_cover_every_verdict() -> None:
    """Without enough proven graphs the test above would show nothing."""
    found = []
    for seed in range(200):
        with af.Graph().as_default():
            x = af.placeholder("float32", [None, 4, 2])
            found.append(row_verdict([x], [random_graph(x, np.random.default_rng(seed))]).kind)
    assert min(found.count(kind) for kind in (RowDependence.ROWS, RowDependence.REFUTED, RowDependence.UNKNOWN)) >= 10
