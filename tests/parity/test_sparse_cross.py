"""Crossed features against TensorFlow: as text and hashed, of sparse and dense inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.parity.test_parsing import same

WORDS = np.array([[b"a", b"b"], [b"", b"a rather long word, of more than 32 bytes"], [b"\xff", b"x_X_y"]], object)
NUMBERS = np.array([[1, -7, 3], [0, 2**62, 5], [-(2**63), 9, 9]], np.int64)


def _sparse(m: Any, values: Any, counts: Any = (2, 0, 3)) -> Any:
    indices = [[row, i] for row, count in enumerate(counts) for i in range(count)]
    return m.SparseTensor(np.array(indices, np.int64).reshape(-1, 2), values, [len(counts), 4])


def _words(m: Any) -> Any:
    return _sparse(m, m.constant([b"one", b"two", b"three", b"four", b"five"]))


def _numbers(m: Any) -> Any:
    return _sparse(m, m.constant([1, -1, 2**63 - 1, 4, 5], "int64"), (1, 2, 2))


INPUTS: dict[str, Any] = {
    "words": lambda m: [m.constant(WORDS)],
    "words twice": lambda m: [m.constant(WORDS), m.constant(WORDS[:, :1])],
    "numbers": lambda m: [m.constant(NUMBERS), m.constant(NUMBERS[:, ::-1].copy())],
    "words and numbers": lambda m: [m.constant(WORDS), m.constant(NUMBERS)],
    "sparse": lambda m: [_words(m), _numbers(m)],
    "sparse and dense": lambda m: [m.constant(NUMBERS), _words(m), m.constant(WORDS), _numbers(m)],
    "all words": lambda m: [_words(m), m.constant(WORDS)],
    "nothing": lambda m: [m.constant(WORDS[:, :0]), m.constant(NUMBERS)],
    "no rows": lambda m: [m.constant(WORDS[:0]), m.constant(NUMBERS[:0])],
    "small numbers": lambda m: [m.constant([[1, 2]], "int32"), m.constant([[3]], "uint8")],
}


def _both(parity: Any, build: Any) -> None:
    def parts(m: Any) -> list[Any]:
        made = build(m)
        return [made.indices, made.values, made.dense_shape]

    same(*parity.either(parts))


@pytest.mark.parametrize("name", INPUTS)
def test_cross_as_text(parity: Any, name: str) -> None:
    _both(parity, lambda m: m.sparse.cross(INPUTS[name](m)))
    _both(parity, lambda m: m.sparse.cross(INPUTS[name](m), separator=" & "))


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("buckets", [0, 1, 1000])
def test_cross_hashed(parity: Any, name: str, buckets: int) -> None:
    _both(parity, lambda m: m.sparse.cross_hashed(INPUTS[name](m), buckets))
    _both(parity, lambda m: m.sparse.cross_hashed(INPUTS[name](m), buckets, 5))


@pytest.mark.parametrize(
    ("name", "strong"),
    [
        ("words twice", True),  # TensorFlow's strong hash of numbers ends the process
        ("all words", True),
        ("words twice", False),
        ("words and numbers", False),
        ("all words", False),
    ],
)
def test_cross_hashed_with_salt(parity: Any, name: str, strong: bool) -> None:
    def build(m: Any) -> list[Any]:
        given = INPUTS[name](m)
        apart = [one for one in given if isinstance(one, m.SparseTensor)]
        made = m.raw_ops.SparseCrossHashed(
            indices=[one.indices for one in apart],
            values=[one.values for one in apart],
            shapes=[one.dense_shape for one in apart],
            dense_inputs=[one for one in given if not isinstance(one, m.SparseTensor)],
            num_buckets=m.constant(100_000, "int64"),
            strong_hash=strong,
            salt=m.constant([137, -5], "int64"),
        )
        return list(made)

    same(*parity.either(build))


WRONG: list[Any] = [
    lambda m: m.sparse.cross([m.constant(WORDS), m.constant(NUMBERS[:2])]),
    lambda m: m.sparse.cross([m.constant(WORDS[0])]),
    lambda m: m.sparse.cross([_words(m), m.constant(WORDS[:2])]),
]


@pytest.mark.parametrize("build", WRONG)
def test_both_reject_wrong_arguments(parity: Any, build: Any) -> None:
    def parts(m: Any) -> list[Any]:
        made = build(m)
        return [made.indices, made.values, made.dense_shape]

    assert parity.either(parts) == ("refused", "refused")
