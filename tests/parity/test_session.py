"""Feeds of a session against TensorFlow's, in every form."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aioflow

TEXTS: dict[str, Any] = {
    "a list": ["é", b"b"],
    "text in an object array": np.array(["é", "b"], dtype=object),
    "bytes in an object array": np.array(["é".encode(), b"b"], dtype=object),
    "both in an object array": np.array(["é", b"b"], dtype=object),
    "text of NumPy's": np.array([np.str_("é"), np.str_("b")], dtype=object),
    "a unicode array": np.array(["é", "b"]),
    "an array of bytes": np.array([b"\xc3\xa9", b"b"]),
    "rows": np.array([["é"], ["b"]], dtype=object),
    "no rows": np.empty((0, 2), dtype=object),
    "a scalar": "é",
    "a scalar of NumPy's": np.str_("é"),
    "a scalar array": np.array("é", dtype=object),
    "bytes that end in zeros": [b"a\0", b"\0"],
    "numbers": [1, 2],
    "numbers in an object array": np.array([1, "b"], dtype=object),
    "None": [None, "b"],
    "half a character": ["\ud800", "b"],
}
NUMBERS: dict[str, Any] = {
    "integers in an object array": np.array([[1], [2]], dtype=object),
    "integers of NumPy's": np.array([np.int64(1), np.int32(2)], dtype=object),
    "truth values in an object array": np.array([True, False], dtype=object),
    "nothing in an object array": np.empty((0, 2), dtype=object),
    "text": ["a", "b"],
    "text in an object array": np.array(["a", 1], dtype=object),
    "rows of several lengths": [[1], [2, 3]],
}


def theirs(tf: Any, dtype: str, value: Any) -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        fed = tf.placeholder(dtype)
        return session.run(tf.identity(fed), {fed: value})


def ours(dtype: str, value: Any) -> Any:
    async def run() -> Any:
        with aioflow.Graph().as_default():
            fed = aioflow.placeholder(dtype)
            async with aioflow.Session() as session:
                return await session.run(aioflow.identity(fed), {fed: value})

    return asyncio.run(run())


def outcome(tf: Any, run: Any, *arguments: Any) -> Any:
    try:
        found = run(*arguments)
    except (ValueError, TypeError, tf.errors.InternalError):
        return "refused"
    array = np.asarray(found, dtype=object)
    return type(found), array.shape, array.tolist(), [type(item) for item in array.flat]


@pytest.mark.parametrize("name", TEXTS)
def test_fed_strings(tf: Any, name: str) -> None:
    assert outcome(tf, ours, "string", TEXTS[name]) == outcome(tf, theirs, tf, "string", TEXTS[name])


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "complex64"])
@pytest.mark.parametrize("name", NUMBERS)
def test_fed_numbers_in_object_arrays(tf: Any, name: str, dtype: str) -> None:
    assert outcome(tf, ours, dtype, NUMBERS[name]) == outcome(tf, theirs, tf, dtype, NUMBERS[name])
