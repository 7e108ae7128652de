"""Tests that strings reach the engine as `bytes`, in every form in which they are fed or returned."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.session.fetches import feed_converter
from tests.net.clusters import cluster

Run = Callable[[af.Session, Any, dict[Any, Any]], Awaitable[Any]]

FORMS: dict[str, Any] = {
    "a list": ["é", b"b"],
    "a tuple": ("é", "b"),
    "an object array of text": np.array(["é", "b"], dtype=object),
    "an object array of bytes": np.array(["é".encode(), b"b"], dtype=object),
    "an object array of both": np.array(["é", b"b"], dtype=object),
    "an object array of NumPy's text": np.array([np.str_("é"), np.bytes_(b"b")], dtype=object),
    "every second of an object array": np.array(["é", "", "b", ""], dtype=object)[::2],
    "a unicode array": np.array(["é", "b"]),
    "an array of bytes": np.array(["é".encode(), b"b"]),
    "NumPy's scalars": [np.str_("é"), np.bytes_(b"b")],
}
SCALARS: dict[str, Any] = {
    "text": "é",
    "bytes": "é".encode(),
    "NumPy's text": np.str_("é"),
    "a unicode array of rank 0": np.array("é"),
    "an object array of rank 0": np.array("é", dtype=object),
    "an object array of rank 0 with bytes": np.array("é".encode(), dtype=object),
}


async def run(session: af.Session, fetch: Any, feeds: dict[Any, Any]) -> Any:
    return await session.run(fetch, feeds)


async def call(session: af.Session, fetch: Any, feeds: dict[Any, Any]) -> Any:
    return await session.make_callable(fetch, list(feeds))(*feeds.values())


async def partially(session: af.Session, fetch: Any, feeds: dict[Any, Any]) -> Any:
    handle = await session.partial_run_setup(fetch, list(feeds))
    return await session.partial_run(handle, fetch, feeds)


async def stream(session: af.Session, fetch: Any, feeds: dict[Any, Any]) -> Any:
    async with session.stream(fetch, [feeds]) as steps:
        return await anext(steps)


WAYS = [run, call, partially, stream]


def check(found: list[Any], expected: Any) -> None:
    """Check the comparison, each text, and the text that a Python function received."""
    same, *texts = found
    assert np.all(same)
    for text in texts:
        assert np.asarray(text, dtype=object).tolist() == expected
        assert all(type(item) is bytes for item in np.asarray(text, dtype=object).flat)


def reading(text: af.Tensor, expected: Any) -> list[Any]:
    seen = af.py_func(lambda values: values, [text], "string")
    return [af.equal(text, af.constant(expected)), af.identity(text), text, seen]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [[2], [None], None], ids=str)
@pytest.mark.parametrize("form", FORMS)
async def test_string_vectors_are_fed_as_bytes(way: Run, shape: Any, form: str) -> None:
    expected = ["é".encode(), b"b"]
    text = af.placeholder("string", shape)
    async with af.Session() as session:
        check(await way(session, reading(text, expected), {text: FORMS[form]}), expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [[], None], ids=str)
@pytest.mark.parametrize("form", SCALARS)
async def test_string_scalars_are_fed_as_bytes(way: Run, shape: Any, form: str) -> None:
    text = af.placeholder("string", shape)
    async with af.Session() as session:
        check(await way(session, reading(text, "é".encode()), {text: SCALARS[form]}), "é".encode())


@pytest.mark.parametrize("tcp", [False, True], ids=["inproc", "tcp"])
@pytest.mark.parametrize("form", FORMS)
async def test_cluster_receives_fed_strings_as_bytes(form: str, tcp: bool) -> None:
    expected = ["é".encode(), b"b"]
    text = af.placeholder("string", [2])
    fetches = [af.equal(text, af.constant(expected)), af.identity(text)]
    async with cluster("worker", tcp=tcp) as (server,), af.Session(server.target) as session:
        check(await session.run(fetches, {text: FORMS[form]}), expected)


@pytest.mark.parametrize("form", FORMS)
async def test_queues_and_sparse_tensors_hold_strings_as_bytes(form: str) -> None:
    expected = ["é".encode(), b"b"]
    text = af.placeholder("string", [2])
    sparse = af.sparse_placeholder("string", [2])
    queue = af.FIFOQueue(4, "string", [[2]])
    async with af.Session() as session:
        await session.run(queue.enqueue(text), {text: FORMS[form]})
        taken = queue.dequeue()
        check(await session.run([af.equal(taken, expected), taken]), expected)
        same = af.equal(sparse.values, expected)
        fed = af.SparseTensorValue([[0], [1]], FORMS[form], [2])
        check(await session.run([same, sparse.values], {sparse: fed}), expected)


@pytest.mark.parametrize("form", FORMS)
async def test_strings_from_user_functions_become_bytes(form: str) -> None:
    expected = ["é".encode(), b"b"]

    async def fetched() -> Any:
        return FORMS[form]

    async def source() -> AsyncIterator[Any]:
        yield (FORMS[form],)

    made = [
        af.py_func(lambda: (FORMS[form],), [], ["string"])[0],
        af.from_async_iterator(source, ["string"])[0],
    ]
    if not isinstance(FORMS[form], list | tuple):  # a list has one value per output
        made.append(af.py_coroutine(fetched, [], "string"))
    async with af.Session() as session:
        for text in made:
            check(await session.run([af.equal(text, expected), af.identity(text)]), expected)


def test_object_array_of_bytes_is_fed_without_a_copy() -> None:
    text = af.placeholder("string", [2])
    fed = np.array([b"a", b"b"], dtype=object)
    assert feed_converter(text)(fed) is fed


@pytest.mark.parametrize("wrong", [[b"a", 1], [None, "b"], [b"a", bytearray(b"b")], [("a",), ("b",)]], ids=repr)
async def test_object_arrays_with_other_items_are_rejected(wrong: Any) -> None:
    text = af.placeholder("string", [2])
    fed = np.empty(2, dtype=object)
    for place, item in enumerate(wrong):
        fed[place] = item
    async with af.Session() as session:
        with pytest.raises(af.errors.DTypeError, match="not a string"):
            await session.run(af.identity(text), {text: fed})


async def test_object_arrays_of_numbers_are_fed_as_numbers() -> None:
    """Feed object arrays of numbers, such as a column of a table with mixed dtypes."""
    x, n = af.placeholder("float32", [2]), af.placeholder("int64", [2])
    async with af.Session() as session:
        found = await session.run([x * 2.0, n + 1], {x: np.array([0.5, 1], object), n: np.array([1, 2], object)})
        assert [f.tolist() for f in found] == [[1.0, 2.0], [2, 3]]
        with pytest.raises(af.errors.DTypeError):
            await session.run(n, {n: np.array([1, 2.5], object)})
