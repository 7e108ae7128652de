"""Static shapes of partly known inputs: aioflow infers at least as much as TensorFlow and accepts what it accepts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aioflow
from tests.parity.builder_table import TABLE, Call, Data, Ints, Sparse, Var

# Calls that TensorFlow rejects and aioflow accepts, since the fed inputs may be valid.
WIDER = {
    "batch_to_space_nd": "it wants the number of dimensions of the block",
    "gather_nd": "it wants the rank of the batch dimensions of both",
    "nn.atrous_conv2d": "it wants the whole shape of the filter",
    "nn.softmax": "along another axis than the last it wants the rank",
    "nn.softmax_cross_entropy_with_logits_v2": "along another axis than the last it wants the rank",
    "parallel_stack": "it wants the whole shape",
    "repeat": "it wants the rank",
    "required_space_to_batch_paddings": "it wants the number of dimensions",
    "space_to_batch_nd": "it wants the rank of the block",
    "substr": "it wants positions and lengths of one static shape",
    "train.noisy_linear_cosine_decay": "it wants the rank of the step",
}
OPENINGS = 8


# -- partly known arguments -------------------------------------------------------------------------------------------


def opened(rng: random.Random, shape: tuple[int, ...], share: float) -> list[int | None] | None:
    if rng.random() < share / 4:
        return None
    return [None if rng.random() < share else size for size in shape]


Maker = Callable[[Any], Any]


def maker(rng: random.Random, argument: Any, share: float) -> Maker:
    """Return a function that makes the argument in a module. Random choices are made here, once for all modules."""
    if isinstance(argument, list):
        makers = [maker(rng, item, share) for item in argument]
        return lambda m: [make(m) for make in makers]
    if isinstance(argument, Data):
        shape = opened(rng, argument.shape, share)
        return lambda m: m.placeholder(argument.dtype, shape)
    if isinstance(argument, Var):
        name = f"v{rng.randrange(10**9)}"
        return lambda m: m.get_variable(
            name, argument.shape, m.as_dtype(argument.dtype), m.zeros_initializer(), use_resource=True
        )
    if isinstance(argument, Sparse):
        return sparse_maker(rng, argument, share)
    if isinstance(argument, Ints):
        return ints_maker(rng, argument.value, argument.dtype, share)
    return lambda m: argument


def sparse_maker(rng: random.Random, argument: Sparse, share: float) -> Maker:
    known, count = rng.random() < 0.5, rng.choice([5, None])

    def make(m: Any) -> Any:
        rank = len(argument.shape)
        shape = m.constant(argument.shape, dtype="int64") if known else m.placeholder("int64", [rank])
        return m.SparseTensor(m.placeholder("int64", [count, rank]), m.placeholder(argument.dtype, [count]), shape)

    return make


def ints_maker(rng: random.Random, value: Any, dtype: str, share: float) -> Maker:
    if not share:
        return lambda m: m.constant(value, dtype=dtype)
    if isinstance(value, int):
        return rng.choice(list(scalars(rng, value, dtype)))
    if isinstance(value[0], tuple):
        rows = [[None if rng.random() < share else item for item in row] for row in value]
        return lambda m: m.stack([m.stack(packed(m, row, dtype)) for row in rows])
    return rng.choice(list(vectors(rng, value, dtype, share)))


def packed(m: Any, items: list[int | None], dtype: str) -> list[Any]:
    return [m.placeholder(dtype, []) if item is None else m.constant(item, dtype=dtype) for item in items]


def other(dtype: str) -> str:
    return "int64" if dtype == "int32" else "int32"


def scalars(rng: random.Random, value: int, dtype: str) -> Iterator[Maker]:
    yield lambda m: value
    yield lambda m: m.placeholder(dtype, [])
    yield lambda m: m.placeholder(dtype)
    yield lambda m: m.cast(m.constant(value, dtype=other(dtype)), dtype)
    yield lambda m: m.placeholder_with_default(m.constant(value, dtype=dtype), [])
    if value >= 0:
        size = rng.choice([value, None])
        yield lambda m: m.shape(m.placeholder("float32", [7, size, 2]), out_type=m.as_dtype(dtype))[1]


def vectors(rng: random.Random, value: tuple[int, ...], dtype: str, share: float) -> Iterator[Maker]:
    items = [None if rng.random() < share else item for item in value]
    yield lambda m: list(value)
    yield lambda m: m.stack(packed(m, items, dtype))
    yield lambda m: m.cast(m.stack(packed(m, items, other(dtype))), dtype)
    yield lambda m: m.concat([m.stack(packed(m, items[:1], dtype)), m.constant(value[1:], dtype, [len(value) - 1])], 0)
    yield lambda m: m.placeholder(dtype, [len(value)])
    yield lambda m: m.placeholder(dtype, [None])
    if min(value) >= 0:
        yield lambda m: m.shape(m.placeholder("float32", items), out_type=m.as_dtype(dtype))
        whole = [9, *items, 8]
        yield lambda m: m.shape(m.placeholder("float32", whole), out_type=m.as_dtype(dtype))[1 : 1 + len(value)]


# -- both systems -----------------------------------------------------------------------------------------------------


def named(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def tensors(module: Any, made: Any) -> list[Any]:
    if isinstance(made, dict):
        made = [made[key] for key in sorted(made)]
    if isinstance(made, module.SparseTensor):
        made = [made.indices, made.values, made.dense_shape]
    if isinstance(made, module.IndexedSlices):
        made = [made.values, made.indices, made.dense_shape]
    if isinstance(made, list | tuple):
        return [tensor for item in made for tensor in tensors(module, item)]
    return [made] if hasattr(made, "get_shape") else []


def dims(tensor: Any) -> list[int | None] | None:
    shape = tensor.get_shape()
    return None if shape.ndims is None else shape.as_list()


def result(module: Any, call: Call, args: list[Maker], kwargs: dict[str, Maker]) -> Any:
    """Return the (dtype, shape) of each tensor, or the error."""
    with module.Graph().as_default():
        positional = [make(module) for make in args]
        by_name = {key: make(module) for key, make in kwargs.items()}
        try:
            made = named(module, call.name)(*positional, **by_name)
        except (ValueError, TypeError) as error:
            return error
        return [(t.dtype.base_dtype.name, dims(t)) for t in tensors(module, made)]


def knows(ours: list[int | None] | None, theirs: list[int | None] | None) -> bool:
    """Return whether our shape has all known sizes of theirs, and possibly more."""
    if theirs is None:
        return True
    if ours is None or len(ours) != len(theirs):
        return False
    return all(b in (None, a) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("call", TABLE, ids=str)
def test_static_shapes(tf: Any, call: Call) -> None:
    for number in range(OPENINGS):
        rng = random.Random(f"{call}/{number}")
        share = 0.0 if number == 0 else rng.choice([0.2, 0.5])
        args = [maker(rng, argument, share) for argument in call.args]
        kwargs = {key: maker(rng, argument, share) for key, argument in call.kwargs.items()}
        theirs, ours = (result(module, call, args, kwargs) for module in (tf, aioflow))
        assert number or isinstance(theirs, list), f"not a right call: {theirs}"
        if isinstance(theirs, list):
            assert isinstance(ours, list), f"opening {number}: {theirs}, but {ours!r}"
            assert [dtype for dtype, _ in ours] == [dtype for dtype, _ in theirs]
            for (_, mine), (_, other_dims) in zip(ours, theirs, strict=True):
                assert knows(mine, other_dims), f"opening {number}: {mine} instead of {other_dims}"
        elif isinstance(ours, list):
            assert call.name in WIDER, f"opening {number}: {ours}, but {theirs!r}"
        else:
            family = TypeError if isinstance(theirs, TypeError) else ValueError
            assert isinstance(ours, family), f"opening {number}: {ours!r}, but {theirs!r}"


# -- shapes computed in the graph -------------------------------------------------------------------------------------

SOURCES: dict[str, Maker] = {
    "constants": lambda m: m.constant([3, 2, 4]),
    "a known shape": lambda m: m.shape(m.placeholder("float32", [3, 2, 4])),
    "an open shape": lambda m: m.shape(m.placeholder("float32", [3, None, 4])),
    "packed": lambda m: m.stack([m.placeholder("int32", []), m.constant(2), m.rank(m.placeholder("float32", [1] * 4))]),
    "fed": lambda m: m.placeholder("int32", [3]),
}

COMPUTED: dict[str, Callable[[Any, Any], Any]] = {
    "itself": lambda m, x: x,
    "concat": lambda m, x: m.concat([[7], x, x], 0),
    "head": lambda m, x: x[:-1],
    "tail": lambda m, x: x[1:],
    "single": lambda m, x: m.stack([x[0], x[-1]]),
    "steps": lambda m, x: x[::2],
    "reverse": lambda m, x: m.reverse(x, [0]),
    "gather": lambda m, x: m.gather(x, [2, 0]),
    "slice": lambda m, x: m.slice(x, [1], [2]),
    "add": lambda m, x: x + 1,
    "subtract": lambda m, x: x - 1,
    "multiply": lambda m, x: x * [2, 1, 3],
    "floordiv": lambda m, x: (x + 1) // 2,
    "mod": lambda m, x: x % 3,
    "maximum": lambda m, x: m.maximum(x, 3),
    "minimum": lambda m, x: m.minimum(x, 3),
    "negative": lambda m, x: m.abs(-x),
    "cast": lambda m, x: m.cast(m.cast(x, "int64"), "int32"),
    "floats": lambda m, x: m.to_int32(m.ceil(m.to_float(x) * 0.5)),
    "rounded": lambda m, x: m.to_int32(m.round(m.to_float(x) * 0.7)),
    "identity": lambda m, x: m.stop_gradient(m.identity(x)),
    "reshape": lambda m, x: m.reshape(m.reshape(x, [1, 3]), [-1]),
    "squeeze": lambda m, x: m.squeeze(m.expand_dims(x, 1), [1]),
    "transpose": lambda m, x: m.transpose(m.stack([x, x]))[:, 0],
    "tile": lambda m, x: m.tile(x, [2]),
    "pad": lambda m, x: m.pad(x, [[1, 0]], constant_values=1),
    "where": lambda m, x: m.where(x > 2, x, m.ones_like(x)),
    "select": lambda m, x: m.where_v2(m.less(x, 3), x, 1),
    "prod": lambda m, x: m.reduce_prod(x, keepdims=True),
    "sum": lambda m, x: m.stack([m.reduce_sum(x), 2]),
    "max": lambda m, x: m.stack([m.reduce_max(x), m.reduce_min(x)]),
    "cumsum": lambda m, x: m.cumsum(x),
    "split": lambda m, x: m.split(x, [1, -1], 0)[1],
    "unstack": lambda m, x: m.stack(m.unstack(x)[::-1]),
    "fill": lambda m, x: m.fill([2], x[0]),
    "range": lambda m, x: m.range(1, x[0] + 1),
    "like": lambda m, x: m.zeros_like(x) + m.ones_like(x) * x,
    "broadcast": lambda m, x: m.broadcast_dynamic_shape(x, m.constant([1])),
    "setdiff": lambda m, x: m.setdiff1d(x, [2])[0],
    "unique": lambda m, x: m.unique(x)[0],
    "stitch": lambda m, x: m.dynamic_stitch([[2, 0], [1]], [x[:2], x[2:]]),
    "shape of a shape": lambda m, x: m.shape(m.zeros(x)),
    "a default": lambda m, x: m.placeholder_with_default(x, x.get_shape()),
}

USES: dict[str, Callable[[Any, Any], Any]] = {
    "reshape": lambda m, x: m.reshape(m.placeholder("float32"), x),
    "fill": lambda m, x: m.fill(x, 1.0),
    "random": lambda m, x: m.random_uniform(x),
    "broadcast_to": lambda m, x: m.broadcast_to(m.placeholder("float32", [1]), x),
    "tile": lambda m, x: m.tile(m.placeholder("float32", [2] * x.get_shape().as_list()[0]), x),
    "slice": lambda m, x: m.slice(m.placeholder("float32", [None] * x.get_shape().as_list()[0]), x * 0, x),
    "range": lambda m, x: m.range(x[0]),
    "one_hot": lambda m, x: m.one_hot([1, 2], x[0]),
    "sequence_mask": lambda m, x: m.sequence_mask(x),
    "pad": lambda m, x: m.pad(m.placeholder("float32", [5, 6]), [[x[0], 1], [x[-1], 0]]),
    "conv2d_transpose": lambda m, x: m.nn.conv2d_transpose(
        m.placeholder("float32", [None, 3, 4, 2]), m.placeholder("float32", [2, 2, 5, 2]),
        m.stack([x[0], 3, 4, 5]), [1, 1, 1, 1],
    ),
}  # fmt: skip


def computed(module: Any, source: Maker, compute: Any, use: Any) -> Any:
    with module.Graph().as_default():
        try:
            made = use(module, compute(module, source(module)))
        except (ValueError, TypeError, AttributeError) as error:
            return error
        return dims(made)


@pytest.mark.parametrize("compute", COMPUTED)
@pytest.mark.parametrize("source", SOURCES)
def test_shapes_computed_in_the_graph(tf: Any, source: str, compute: str) -> None:
    for name, use in USES.items():
        theirs, ours = (computed(m, SOURCES[source], COMPUTED[compute], use) for m in (tf, aioflow))
        if isinstance(theirs, Exception):
            continue  # an expression that does not suit this use
        assert not isinstance(ours, Exception), f"{name}: {theirs}, but {ours!r}"
        assert knows(ours, theirs), f"{name}: {ours} instead of {theirs}"


def floats(m: Any, *sizes: int | None) -> Any:
    return m.placeholder("float32", list(sizes))


# Shapes that depend in part on a tensor `n`, of tensors of partly known shape.
PARTLY: dict[str, Callable[[Any, Any], Any]] = {
    "reshape, the rest": lambda m, n: m.reshape(floats(m, None, 4), [-1, 2]),
    "reshape, a size": lambda m, n: m.reshape(floats(m, None, 4), [n, 4]),
    "reshape, a size of a known number": lambda m, n: m.reshape(floats(m, 6), [n, 3]),
    "reshape, a size and the rest": lambda m, n: m.reshape(floats(m, 6), [n, -1]),
    "reshape, the rest and a size": lambda m, n: m.reshape(floats(m, None, 6), [-1, n, 3]),
    "reshape, no elements": lambda m, n: m.reshape(floats(m, None, 0), [-1, 2]),
    "reshape, a size at the end": lambda m, n: m.reshape(floats(m, 2, 3), m.stack([n, 3])),
    "reshape, its own size": lambda m, n: m.reshape(x := floats(m, None, 4), [m.shape(x)[0], 4]),
    "reshape, sizes joined": lambda m, n: m.reshape(x := floats(m, None, 4), m.concat([m.shape(x)[:1], [2, 2]], 0)),
    "reshape, its shape": lambda m, n: m.reshape(x := floats(m, None, 4), m.shape(x)),
    "reshape, flat": lambda m, n: m.reshape(floats(m, 6), m.placeholder("int32", [1])),
    "reshape, a known rank": lambda m, n: m.reshape(m.placeholder("float32"), m.placeholder("int32", [3])),
    "reshape, an unknown rank": lambda m, n: m.reshape(m.placeholder("float32"), [n, 3]),
    "tile, an open size": lambda m, n: m.tile(floats(m, None, 4), [2, n]),
    "tile, once": lambda m, n: m.tile(floats(m, None, 4), [n, 1]),
    "tile, a known size": lambda m, n: m.tile(floats(m, 2, 3), [n, 2]),
    "tile, no elements": lambda m, n: m.tile(floats(m, 0, 3), [n, 2]),
    "tile, never": lambda m, n: m.tile(floats(m, 2, 3), [0, n]),
    "tile, an unknown rank": lambda m, n: m.tile(m.placeholder("float32"), [n, 2]),
    "tile, by a vector": lambda m, n: m.tile(m.placeholder("float32"), m.placeholder("int32", [2])),
    "tile, by anything": lambda m, n: m.tile(floats(m, 2, 3), m.placeholder("int32")),
    "tile, then reshape": lambda m, n: m.reshape(m.tile(floats(m, None, 4), [1, 2]), [-1, 8]),
    "broadcast_to": lambda m, n: m.broadcast_to(floats(m, 3), [n, 3]),
    "fill": lambda m, n: m.fill([n, 3], 1.0),
    "slice": lambda m, n: m.slice(floats(m, None, 4), [0, 0], [n, -1]),
    "pad": lambda m, n: m.pad(floats(m, None, 4), [[1, 1], [n, 0]]),
    "part": lambda m, n: floats(m, None, 4)[1:, n:],
    "split": lambda m, n: m.split(floats(m, None, 6), [2, -1, 3], 1)[1],
}


@pytest.mark.parametrize("name", PARTLY)
def test_partly_known_shapes(tf: Any, name: str) -> None:
    found = []
    for m in (aioflow, tf):
        with m.Graph().as_default():
            found.append(dims(PARTLY[name](m, m.placeholder("int32", []))))
    assert knows(*found), f"{found[0]} instead of {found[1]}"
