"""Datasets, with the structure of their elements and the elements, as TensorFlow makes them."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

Pair = namedtuple("Pair", "left right")


class DatasetCase(NamedTuple):
    """A dataset.

    Attributes:
        build: Returns the dataset, given the module.
        spec: The structure of an element, with dtype and static shape of each component.
        elements: The elements as plain values; the name of the error where one fails.
    """

    build: Callable[[Any], Any]
    spec: Any
    elements: list[Any]


def D(m: Any) -> Any:
    """Return the class of datasets."""
    return m.data.Dataset


def spec_of(types: Any, shapes: Any) -> Any:
    """Return a structure of dtypes and one of shapes in the form of the table."""
    if hasattr(types, "_asdict"):
        types, shapes = types._asdict(), shapes._asdict()
    if isinstance(types, dict):
        return {key: spec_of(types[key], shapes[key]) for key in types}
    if isinstance(types, tuple):
        return tuple(spec_of(a, b) for a, b in zip(types, shapes, strict=True))
    return types.name + str(None if shapes.ndims is None else shapes.as_list())


def plain(value: Any) -> Any:
    """Return an element in the form of the table."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    return np.asarray(value).tolist()


def nan_at_2(m: Any, x: Any) -> Any:
    """Return the number as a float; fail for 2."""
    return m.check_numerics(m.where(m.equal(x, 2), m.constant(np.nan), m.cast(x, m.float32)), "bad")


CASES: Final[dict[str, DatasetCase]] = {
    "range stop": DatasetCase(lambda m: D(m).range(4), "int64[]", [0, 1, 2, 3]),
    "range start stop": DatasetCase(lambda m: D(m).range(2, 5), "int64[]", [2, 3, 4]),
    "range step": DatasetCase(lambda m: D(m).range(9, 1, -3), "int64[]", [9, 6, 3]),
    "range empty": DatasetCase(lambda m: D(m).range(5, 1), "int64[]", []),
    "from_tensors": DatasetCase(
        lambda m: D(m).from_tensors((np.arange(3), "x")), ("int64[3]", "string[]"), [([0, 1, 2], b"x")]
    ),
    "slices of a dict": DatasetCase(
        lambda m: D(m).from_tensor_slices(
            {"b": np.arange(6, dtype=np.int32).reshape(3, 2), "a": np.array([1.5, 2.5, 3.5])}
        ),
        {"b": "int32[2]", "a": "float64[]"},
        [{"b": [0, 1], "a": 1.5}, {"b": [2, 3], "a": 2.5}, {"b": [4, 5], "a": 3.5}],
    ),
    "slices of a named tuple": DatasetCase(
        lambda m: D(m).from_tensor_slices(Pair([1, 2], ["x", "y"])),
        {"left": "int32[]", "right": "string[]"},
        [{"left": 1, "right": b"x"}, {"left": 2, "right": b"y"}],
    ),
    "slices of a list": DatasetCase(lambda m: D(m).from_tensor_slices([[1, 2], [3, 4]]), "int32[2]", [[1, 2], [3, 4]]),
    "slices of strings": DatasetCase(
        lambda m: D(m).from_tensor_slices(np.array([[b"a", b"b"], [b"c", b"d"]], object)),
        "string[2]",
        [[b"a", b"b"], [b"c", b"d"]],
    ),
    "slices of tensors": DatasetCase(
        lambda m: D(m).from_tensor_slices((m.constant([1.0, 2.0]), m.constant([True, False]))),
        ("float32[]", "bool[]"),
        [(1.0, True), (2.0, False)],
    ),
    "slices of nothing": DatasetCase(lambda m: D(m).from_tensor_slices(np.zeros((0, 2), np.float32)), "float32[2]", []),
    "nested structure": DatasetCase(
        lambda m: D(m).from_tensors(({"a": 1, "b": (2, 3)}, 4)),
        ({"a": "int32[]", "b": ("int32[]", "int32[]")}, "int32[]"),
        [({"a": 1, "b": (2, 3)}, 4)],
    ),
    "zip": DatasetCase(
        lambda m: D(m).zip((D(m).range(3), {"x": D(m).range(10, 15)})),
        ("int64[]", {"x": "int64[]"}),
        [(0, {"x": 10}), (1, {"x": 11}), (2, {"x": 12})],
    ),
    "zip of arguments": DatasetCase(
        lambda m: D(m).zip(D(m).range(3), D(m).range(10, 15)), ("int64[]", "int64[]"), [(0, 10), (1, 11), (2, 12)]
    ),
    "concatenate": DatasetCase(lambda m: D(m).range(2).concatenate(D(m).range(7, 9)), "int64[]", [0, 1, 7, 8]),
    "concatenate other shapes": DatasetCase(
        lambda m: D(m).from_tensors([1, 2]).concatenate(D(m).from_tensors([1, 2, 3])),
        "int32[None]",
        [[1, 2], [1, 2, 3]],
    ),
    "repeat": DatasetCase(lambda m: D(m).range(2).repeat(3), "int64[]", [0, 1, 0, 1, 0, 1]),
    "repeat zero": DatasetCase(lambda m: D(m).range(2).repeat(0), "int64[]", []),
    "repeat for ever": DatasetCase(lambda m: D(m).range(2).repeat().take(5), "int64[]", [0, 1, 0, 1, 0]),
    "repeat nothing for ever": DatasetCase(lambda m: D(m).range(0).repeat(), "int64[]", []),
    "take": DatasetCase(lambda m: D(m).range(5).take(2), "int64[]", [0, 1]),
    "take zero": DatasetCase(lambda m: D(m).range(5).take(0), "int64[]", []),
    "take all": DatasetCase(lambda m: D(m).range(3).take(-1), "int64[]", [0, 1, 2]),
    "take more": DatasetCase(lambda m: D(m).range(3).take(10), "int64[]", [0, 1, 2]),
    "skip": DatasetCase(lambda m: D(m).range(5).skip(3), "int64[]", [3, 4]),
    "skip all": DatasetCase(lambda m: D(m).range(5).skip(-1), "int64[]", []),
    "skip more": DatasetCase(lambda m: D(m).range(3).skip(10), "int64[]", []),
    "shard": DatasetCase(lambda m: D(m).range(10).shard(3, 1), "int64[]", [1, 4, 7]),
    "shard last": DatasetCase(lambda m: D(m).range(7).shard(4, 3), "int64[]", [3]),
    "enumerate": DatasetCase(
        lambda m: D(m).from_tensor_slices(["a", "b"]).enumerate(5), ("int64[]", "string[]"), [(5, b"a"), (6, b"b")]
    ),
    "enumerate pairs": DatasetCase(
        lambda m: D(m).from_tensor_slices(([1, 2], [3, 4])).enumerate(),
        ("int64[]", ("int32[]", "int32[]")),
        [(0, (1, 3)), (1, (2, 4))],
    ),
    "batch": DatasetCase(lambda m: D(m).range(5).batch(2), "int64[None]", [[0, 1], [2, 3], [4]]),
    "batch drop": DatasetCase(lambda m: D(m).range(5).batch(2, drop_remainder=True), "int64[2]", [[0, 1], [2, 3]]),
    "batch drop all": DatasetCase(lambda m: D(m).range(2).batch(3, True), "int64[3]", []),
    "batch of structures": DatasetCase(
        lambda m: D(m).from_tensor_slices({"s": ["x", "y", "z"], "v": np.ones((3, 2), np.float32)}).batch(2),
        {"s": "string[None]", "v": "float32[None, 2]"},
        [{"s": [b"x", b"y"], "v": [[1.0, 1.0], [1.0, 1.0]]}, {"s": [b"z"], "v": [[1.0, 1.0]]}],
    ),
    "batch of batches": DatasetCase(
        lambda m: D(m).range(7).batch(2).batch(2), "int64[None, None]", [[[0, 1], [2, 3]], "InvalidArgumentError"]
    ),
    "batch of different shapes": DatasetCase(
        lambda m: D(m).from_tensors([1, 2]).concatenate(D(m).from_tensors([1, 2, 3])).batch(2),
        "int32[None, None]",
        ["InvalidArgumentError"],
    ),
    "batch then unbatch": DatasetCase(lambda m: D(m).range(5).batch(2).unbatch(), "int64[]", [0, 1, 2, 3, 4]),
    "unbatch pairs": DatasetCase(
        lambda m: D(m).from_tensors(([1, 2], ["a", "b"])).unbatch(), ("int32[]", "string[]"), [(1, b"a"), (2, b"b")]
    ),
    "padded batch": DatasetCase(
        lambda m: D(m).range(1, 5).map(lambda x: m.fill([x], x)).padded_batch(3, [None]),
        "int64[None, None]",
        [[[1, 0, 0], [2, 2, 0], [3, 3, 3]], [[4, 4, 4, 4]]],
    ),
    "padded batch default": DatasetCase(
        lambda m: D(m).range(1, 4).map(lambda x: m.fill([x], x)).padded_batch(2),
        "int64[None, None]",
        [[[1, 0], [2, 2]], [[3, 3, 3]]],
    ),
    "padded batch fixed": DatasetCase(
        lambda m: D(m).range(1, 4).map(lambda x: m.fill([x], x)).padded_batch(2, [5], m.constant(-1, m.int64), True),
        "int64[2, 5]",
        [[[1, -1, -1, -1, -1], [2, 2, -1, -1, -1]]],
    ),
    "padded batch too small": DatasetCase(
        lambda m: D(m).range(1, 4).map(lambda x: m.fill([x], x)).padded_batch(2, [1]),
        "int64[None, 1]",
        ["DataLossError", "DataLossError"],
    ),
    "padded batch of structures": DatasetCase(
        lambda m: (
            D(m)
            .range(1, 4)
            .map(lambda x: {"n": x, "s": m.fill([x], "z")})
            .padded_batch(2, {"n": [], "s": [None]}, {"n": m.constant(0, m.int64), "s": "-"})
        ),
        {"n": "int64[None]", "s": "string[None, None]"},
        [{"n": [1, 2], "s": [[b"z", b"-"], [b"z", b"z"]]}, {"n": [3], "s": [[b"z", b"z", b"z"]]}],
    ),
    "map": DatasetCase(lambda m: D(m).range(4).map(lambda x: x * x), "int64[]", [0, 1, 4, 9]),
    "map a pair": DatasetCase(
        lambda m: D(m).from_tensor_slices(([1, 2], [10, 20])).map(lambda x, y: (x + y, x - y)),
        ("int32[]", "int32[]"),
        [(11, -9), (22, -18)],
    ),
    "map a dict": DatasetCase(
        lambda m: D(m).from_tensor_slices({"a": [1, 2]}).map(lambda d: {"b": d["a"] + 1, "c": "x"}),
        {"b": "int32[]", "c": "string[]"},
        [{"b": 2, "c": b"x"}, {"b": 3, "c": b"x"}],
    ),
    "map a named tuple": DatasetCase(
        lambda m: D(m).from_tensor_slices(Pair([1, 2], [3, 4])).map(lambda p: Pair(p.right, p.left)),
        {"left": "int32[]", "right": "int32[]"},
        [{"left": 3, "right": 1}, {"left": 4, "right": 2}],
    ),
    "map to a list": DatasetCase(
        lambda m: D(m).range(3).map(lambda x: [x, x + 1]), ("int64[]", "int64[]"), [(0, 1), (1, 2), (2, 3)]
    ),
    "map to a constant": DatasetCase(lambda m: D(m).range(2).map(lambda x: 7), "int32[]", [7, 7]),
    "map identity": DatasetCase(lambda m: D(m).range(2).map(lambda x: x), "int64[]", [0, 1]),
    "map parallel": DatasetCase(
        lambda m: D(m).range(20).map(lambda x: x + 1, num_parallel_calls=4),
        "int64[]",
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20],
    ),
    "map parallel tuned": DatasetCase(
        lambda m: D(m).range(9).map(lambda x: x + 1, m.data.experimental.AUTOTUNE),
        "int64[]",
        [1, 2, 3, 4, 5, 6, 7, 8, 9],
    ),
    "map with a loop": DatasetCase(
        lambda m: D(m).range(4).map(lambda x: m.while_loop(lambda i: i < 10, lambda i: i * 2 + 1, [x])),
        "int64[]",
        [15, 15, 11, 15],
    ),
    "map with a branch": DatasetCase(
        lambda m: D(m).range(4).map(lambda x: m.cond(x > 1, lambda: x * 10, lambda: x)), "int64[]", [0, 1, 20, 30]
    ),
    "map with py_func": DatasetCase(
        lambda m: D(m).range(3).map(lambda x: m.py_func(lambda v: v + np.int64(1), [x], m.int64)),
        "int64None",
        [1, 2, 3],
    ),
    "map with an error": DatasetCase(
        lambda m: D(m).range(4).map(lambda x: nan_at_2(m, x)), "float32[]", [0.0, 1.0, "InvalidArgumentError", 3.0]
    ),
    "map with an error, parallel": DatasetCase(
        lambda m: D(m).range(4).map(lambda x: nan_at_2(m, x), 4), "float32[]", [0.0, 1.0, "InvalidArgumentError", 3.0]
    ),
    "batch with an error": DatasetCase(
        lambda m: D(m).range(6).map(lambda x: nan_at_2(m, x)).batch(2),
        "float32[None]",
        [[0.0, 1.0], "InvalidArgumentError", [4.0, 5.0]],
    ),
    "map strings of several lengths": DatasetCase(
        lambda m: (
            D(m)
            .from_tensor_slices(["ab", "cd", "efg", "hi", "j"])
            .map(lambda s: m.cast(m.decode_raw(s, m.uint8), m.int32))
        ),
        "int32[None]",
        [[97, 98], [99, 100], [101, 102, 103], [104, 105], [106]],
    ),
    "map rows with an error, in batches": DatasetCase(
        lambda m: (
            D(m)
            .from_tensor_slices(["abcd", "efgh", "x", "ijkl", "mnop", "qrst"])
            .map(lambda s: m.reshape(m.decode_raw(s, m.uint8), [2, 2]))
            .batch(2)
        ),
        "uint8[None, 2, 2]",
        [
            [[[97, 98], [99, 100]], [[101, 102], [103, 104]]],
            "InvalidArgumentError",
            [[[109, 110], [111, 112]], [[113, 114], [115, 116]]],
        ],
    ),
    "map rows in batches": DatasetCase(
        lambda m: D(m).range(10).map(lambda x: (x * 2 + 1, m.where(x > 4, x, -x), m.expand_dims(x, 0))).batch(5),
        ("int64[None]", "int64[None]", "int64[None, 1]"),
        [
            ([1, 3, 5, 7, 9], [0, -1, -2, -3, -4], [[0], [1], [2], [3], [4]]),
            ([11, 13, 15, 17, 19], [5, 6, 7, 8, 9], [[5], [6], [7], [8], [9]]),
        ],
    ),
    "filter": DatasetCase(lambda m: D(m).range(6).filter(lambda x: m.equal(x % 2, 1)), "int64[]", [1, 3, 5]),
    "filter pairs": DatasetCase(
        lambda m: D(m).from_tensor_slices(([1, 2, 3], [3, 2, 1])).filter(lambda x, y: x > y),
        ("int32[]", "int32[]"),
        [(3, 1)],
    ),
    "filter nothing": DatasetCase(lambda m: D(m).range(6).filter(lambda x: x > 100), "int64[]", []),
    "flat_map": DatasetCase(lambda m: D(m).range(4).flat_map(lambda x: D(m).range(x)), "int64[]", [0, 0, 1, 0, 1, 2]),
    "flat_map tensors": DatasetCase(
        lambda m: D(m).from_tensor_slices([[1, 2], [3, 4]]).flat_map(D(m).from_tensor_slices), "int32[]", [1, 2, 3, 4]
    ),
    "interleave": DatasetCase(
        lambda m: D(m).range(1, 6).interleave(lambda x: D(m).from_tensors(x).repeat(6), 2, 4),
        "int64[]",
        [1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 3, 3, 4, 4, 5, 5, 5, 5, 5, 5],
    ),
    "interleave one": DatasetCase(
        lambda m: D(m).range(5).interleave(lambda x: D(m).range(x), cycle_length=3, block_length=1),
        "int64[]",
        [0, 0, 0, 1, 1, 0, 2, 1, 2, 3],
    ),
    "interleave uneven": DatasetCase(
        lambda m: D(m).range(6).interleave(lambda x: D(m).from_tensors(x).repeat(x), cycle_length=4, block_length=2),
        "int64[]",
        [1, 2, 2, 3, 3, 4, 4, 5, 5, 3, 4, 4, 5, 5, 5],
    ),
    "shuffle": DatasetCase(lambda m: D(m).range(10).shuffle(4, seed=7), "int64[]", [0, 4, 2, 3, 5, 6, 1, 8, 7, 9]),
    "shuffle all": DatasetCase(
        lambda m: D(m).range(10).shuffle(100, seed=7), "int64[]", [2, 8, 6, 5, 9, 1, 0, 3, 7, 4]
    ),
    "shuffle one": DatasetCase(lambda m: D(m).range(4).shuffle(1, seed=7), "int64[]", [0, 1, 2, 3]),
    "shuffle repeat": DatasetCase(
        lambda m: D(m).range(6).shuffle(6, seed=3).repeat(3),
        "int64[]",
        [0, 1, 2, 3, 4, 5, 0, 4, 1, 5, 3, 2, 2, 4, 5, 3, 0, 1],
    ),
    "shuffle repeat the same": DatasetCase(
        lambda m: D(m).range(6).shuffle(6, seed=3, reshuffle_each_iteration=False).repeat(2),
        "int64[]",
        [5, 4, 2, 0, 3, 1, 5, 4, 2, 0, 3, 1],
    ),
    "repeat shuffle": DatasetCase(
        lambda m: D(m).range(4).repeat(3).shuffle(5, seed=3), "int64[]", [0, 1, 0, 2, 3, 0, 2, 2, 1, 1, 3, 3]
    ),
    "shuffle batch repeat": DatasetCase(
        lambda m: D(m).range(5).shuffle(3, seed=1).batch(2).repeat(2),
        "int64[None]",
        [[1, 3], [0, 4], [2], [1, 3], [0, 4], [2]],
    ),
    "cache": DatasetCase(lambda m: D(m).range(3).cache().repeat(2), "int64[]", [0, 1, 2, 0, 1, 2]),
    "cache of a shuffle": DatasetCase(
        lambda m: D(m).range(6).shuffle(6, seed=3).cache().repeat(2), "int64[]", [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]
    ),
    "prefetch": DatasetCase(lambda m: D(m).range(5).prefetch(2), "int64[]", [0, 1, 2, 3, 4]),
    "prefetch zero": DatasetCase(lambda m: D(m).range(5).prefetch(0), "int64[]", [0, 1, 2, 3, 4]),
    "prefetch tuned": DatasetCase(lambda m: D(m).range(5).batch(2).prefetch(-1), "int64[None]", [[0, 1], [2, 3], [4]]),
    "prefetch with an error": DatasetCase(
        lambda m: D(m).range(4).map(lambda x: nan_at_2(m, x)).prefetch(2),
        "float32[]",
        [0.0, 1.0, "InvalidArgumentError", 3.0],
    ),
    "apply": DatasetCase(lambda m: D(m).range(3).apply(lambda d: d.map(lambda x: -x)), "int64[]", [0, -1, -2]),
    "generator": DatasetCase(lambda m: D(m).from_generator(lambda: iter([1, 2, 3]), m.int32), "int32None", [1, 2, 3]),
    "generator of structures": DatasetCase(
        lambda m: D(m).from_generator(
            lambda: (({"a": i, "b": "x"}, [i, i]) for i in range(2)),
            ({"a": m.int64, "b": m.string}, m.float32),
            ({"a": [], "b": []}, [2]),
        ),
        ({"a": "int64[]", "b": "string[]"}, "float32[2]"),
        [({"a": 0, "b": b"x"}, [0.0, 0.0]), ({"a": 1, "b": b"x"}, [1.0, 1.0])],
    ),
    "generator with args": DatasetCase(
        lambda m: D(m).from_generator(lambda n: range(n), m.int64, [], args=(3,)), "int64[]", [0, 1, 2]
    ),
    "generator casts": DatasetCase(
        lambda m: D(m).from_generator(lambda: [np.float64(1.5), np.int64(2)], m.float32), "float32None", [1.5, 2.0]
    ),
    "generator of another shape": DatasetCase(
        lambda m: D(m).from_generator(lambda: [[1, 2], [3]], m.int64, [2]), "int64[2]", [[1, 2], "InvalidArgumentError"]
    ),
    "generator repeat": DatasetCase(
        lambda m: D(m).from_generator(lambda: iter([1, 2]), m.int64).repeat(2), "int64None", [1, 2, 1, 2]
    ),
}
