"""Batching of models: which ones are batched, and no response has rows of another request."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DeadlineExceededError, DTypeError, InvalidArgumentError, OpError
from aioflow.interop.model import Signature
from aioflow.serve.calls import SignatureCalls, open_call
from aioflow.serve.options import ModelOptions

Build = Callable[[Any], Any]


def repeated(x: Any) -> Any:
    """Repeat each row whose first number is positive, and drop it if the number is negative."""
    return af.repeat(x, 1 + af.cast(af.sign(x[:, 0]), af.int32), axis=0)


def selected(x: Any) -> Any:
    """Return the rows whose first number is not negative."""
    return af.boolean_mask(x, x[:, 0] >= 0)


def hidden(function: Callable[[Any], Any]) -> Build:
    """Return a builder with a Python function without effects, whose op has no traits about rows."""
    return lambda x: af.py_func(function, [x], af.float32, stateful=False)


def _refused(x: Any) -> Any:
    raise ValueError("no rows like these")


async def opened(session: af.Session, build: Build, **options: Any) -> SignatureCalls:
    x = af.placeholder("float32", [None, 2], name="x")
    y = build(x)
    y.set_shape([None, 2])
    return await open_call(session, Signature({"x": x}, {"y": y}), ModelOptions(**options), "m")


async def answers(call: SignatureCalls, *sent: Any) -> list[Any]:
    """Send the requests concurrently and return each one's output or error."""
    calls = [call([np.array(each, np.float32)], 60.0, 0) for each in sent]
    found: Sequence[Any] = await asyncio.gather(*calls, return_exceptions=True)
    return [each["y"].tolist() if isinstance(each, dict) else each for each in found]


@pytest.mark.parametrize("how", ["auto", "proven", "always", "never"])
async def test_no_response_has_rows_of_another_request(how: str) -> None:
    """Two responses have as many rows together as their requests, but all of these rows belong to one request."""
    async with af.Session() as session:
        call = await opened(session, repeated, batch=how)
        assert call.is_batched == (how == "always")
        assert await answers(call, [[3, 1]], [[7, 777]], [[-3, 333]]) == [[[3, 1]] * 2, [[7, 777]] * 2, []]
        assert not call.is_batched


async def test_batching_stops_at_the_first_wrong_row_count(caplog: pytest.LogCaptureFixture) -> None:
    async with af.Session() as session:
        call = await opened(session, selected, batch="always")
        assert await answers(call, [[1, 2]], [[3, 4]]) == [[[1, 2]], [[3, 4]]]
        assert call.is_batched
        assert await answers(call, [[1, 2], [-1, 5]]) == [[[1, 2]]]
        assert "share no more steps" in caplog.text
        assert await answers(call, [[1, 2], [-1, 5]], [[-3, 4]], [[3, 4]]) == [[[1, 2]], [], [[3, 4]]]
        found = call.statistics()
        assert (found.answered, found.failed) == (6, 0)


async def test_failed_request_to_a_model_with_effects_is_not_repeated() -> None:
    async with af.Session() as session:
        count = af.Variable(0)
        await session.run(count.initializer)

        def counting(x: Any) -> Any:
            with af.control_dependencies([af.assign_add(count, 1)]):
                return selected(af.identity(x))

        call = await opened(session, counting, batch="always")
        (error,) = await answers(call, [[-1, 5]])
        assert isinstance(error, InvalidArgumentError)
        assert await session.run(count) == 1
        assert await answers(call, [[-1, 5]]) == [[]]
        assert (call.statistics().answered, call.statistics().failed) == (1, 1)


async def test_request_that_fails_in_a_batch_and_alone_is_counted_once() -> None:
    def refusing(x: Any) -> Any:
        if len(x) == 1 and x[0, 0] < 0:
            raise ValueError("no rows like these")
        return x[:1]

    async with af.Session() as session:
        call = await opened(session, hidden(refusing), batch="always", max_batch_size=2)
        found = await answers(call, [[1, 2]], [[-3, 4]])
        assert found[0] == [[1, 2]]
        assert isinstance(found[1], OpError)
        assert (call.statistics().answered, call.statistics().failed) == (1, 1)


async def test_waiting_requests_to_a_model_with_effects_are_answered_after_a_mixed_batch() -> None:
    async with af.Session() as session:
        count = af.Variable(0)
        await session.run(count.initializer)

        def counting(x: Any) -> Any:
            with af.control_dependencies([af.assign_add(count, 1)]):
                return selected(af.identity(x))

        call = await opened(session, counting, batch="always", max_batch_size=2)
        found = await answers(call, [[-1, 5]], [[1, 1]], [[3, 4]], [[5, 6]])
        assert [isinstance(each, InvalidArgumentError) for each in found[:2]] == [True, True]
        assert found[2:] == [[[3, 4]], [[5, 6]]]
        assert await session.run(count) == 3


async def test_result_of_a_batch_that_outlives_batching_is_discarded() -> None:
    done = threading.Event()

    def mixing(x: Any) -> Any:
        if len(x) == 2 and x[0, 0] == 7:
            done.wait(60)
            return x[[0, 0]]
        return x[:1]

    async with af.Session() as session:
        call = await opened(session, hidden(mixing), batch="always", max_batch_size=2, max_concurrent_batches=2)
        async with asyncio.TaskGroup() as group:
            first, second = (group.create_task(answers(call, [[n, 0]], [[n + 1, 0]])) for n in (7, 1))
            await asyncio.wait([second])
            done.set()
        assert second.result() == [[[1, 0]], [[2, 0]]]
        assert first.result() == [[[7, 0]], [[8, 0]]]


@pytest.mark.parametrize(
    ("function", "is_batched"),
    [
        (lambda x: x * 2, True),
        (lambda x: x / (1 + np.abs(x).sum(1, keepdims=True)), True),
        (lambda x: x - x.mean(0), False),
        (lambda x: ((x - [0, x[:, 1].mean()]) * [1e4, 1]).astype(np.float32), False),
        (lambda x: (x * [1e4, 1e-9]).astype(np.float32), True),
        (lambda x: x[x[:, 0] >= 0], False),
        (lambda x: x[::-1].copy(), False),
        (lambda x: x * len(x), False),
        (lambda x: x + np.float32(len(x) > 2), False),
        (_refused, False),
    ],
)
async def test_functions_without_traits_are_batched_if_a_trial_succeeds(
    function: Callable[[Any], Any], is_batched: bool
) -> None:
    async with af.Session() as session:
        assert (await opened(session, hidden(function))).is_batched == is_batched
        for options in ({"batch": "proven"}, {"warmup": False}, {"batch": "never"}):
            assert not (await opened(session, hidden(function), **options)).is_batched
        assert (await opened(session, hidden(function), batch="always")).is_batched


async def test_model_with_effects_is_not_tried() -> None:
    async with af.Session() as session:
        count = af.Variable(0)
        await session.run(count.initializer)

        def counting(x: Any) -> Any:
            with af.control_dependencies([af.assign_add(count, 1)]):
                return hidden(lambda value: value)(x)

        assert not (await opened(session, counting)).is_batched
        assert await session.run(count) == 0


def _padded_words(texts: Any) -> Any:
    """Return word lengths per text, padded to the longest text, like a tokenizer."""
    words = [text.split() for text in texts]
    return np.array([[len(each) for each in text] + [0] * (max(map(len, words)) - len(text)) for text in words], "f")


@pytest.mark.parametrize(
    ("function", "is_batched"),
    [
        (_padded_words, False),
        (lambda texts: _padded_words(texts).mean(1), False),
        (lambda texts: _padded_words(texts).sum(1), True),
        (lambda texts: np.array([float(text) for text in texts], np.float32), True),
    ],
)
async def test_text_models_are_tried_with_different_word_counts(
    function: Callable[[Any], Any], is_batched: bool
) -> None:
    async with af.Session() as session:
        x = af.placeholder("string", [None])
        y = af.py_func(function, [x], af.float32, stateful=False)
        assert (await open_call(session, Signature({"x": x}, {"y": y}), ModelOptions(), "m")).is_batched == is_batched


async def test_inputs_of_a_trial_have_different_values() -> None:
    async with af.Session() as session:
        inputs = {name: af.placeholder("float32", [None, 2]) for name in ("x", "y")}
        mixing = af.py_func(lambda x, y: (x - y) * x.mean(0), list(inputs.values()), af.float32, stateful=False)
        mixing.set_shape([None, 2])
        assert not (await open_call(session, Signature(inputs, {"z": mixing}), ModelOptions(), "m")).is_batched


async def test_proven_model_is_batched_without_a_trial_step() -> None:
    async with af.Session() as session:
        call = await opened(session, lambda x: af.nn.softmax(af.tanh(x) * 2.0), warmup=False)
        assert call.is_batched
        assert call.statistics().batches == 0


async def test_request_without_rows_is_computed_alone() -> None:
    async with af.Session() as session:
        call = await opened(session, lambda x: x * 2.0)
        empty = np.zeros((0, 2))
        assert call.is_batched
        assert await answers(call, empty, [[1, 2]], empty) == [[], [[2, 4]], []]
        assert (await call([empty.astype(np.float32)], None, 0))["y"].shape == (0, 2)


async def test_log_explains_why_a_model_is_not_batched(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aioflow.serve")
    async with af.Session() as session:
        await opened(session, lambda x: x - af.reduce_mean(x, 0, name="of_all"))
        assert "model m: requests share no steps: 'of_all' (Mean) computes with several rows" in caplog.text
        await opened(session, hidden(_refused))
        assert "model m: requests share no steps: steps with random rows failed: " in caplog.text
        assert "no rows like these" in caplog.text


@pytest.mark.parametrize(
    ("shape", "build", "batch", "why"),
    [
        ([1, 4], lambda x: x * 2.0, "auto", "the first size of input 'X' is 1"),
        ([None, 4], lambda x: af.ones([3, 4]) + af.reduce_sum(x), "always", "the first size of output 'Y' is 3"),
        ([], lambda x: x * 2.0, "auto", "input 'X' is a scalar"),
        ([None], af.reduce_sum, "proven", "output 'Y' is a scalar"),
        ([None, 4], lambda x: x * 2.0, "never", "batch is never"),
    ],
)
async def test_log_names_the_size_that_prevents_batching(
    shape: list[int | None], build: Build, batch: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aioflow.serve")
    async with af.Session() as session:
        x = af.placeholder("float32", shape)
        signature = Signature({"X": x}, {"Y": build(x)})
        assert not (await open_call(session, signature, ModelOptions(batch=batch), "iris")).is_batched
    (line,) = (record for record in caplog.records if record.name == "aioflow.serve")
    assert (line.levelname, line.getMessage()) == ("INFO", f"model iris: requests share no steps: {why}")


def test_unknown_batch_option_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="batch"):
        ModelOptions(batch=True)  # type: ignore[arg-type]  # the option's former type


@pytest.mark.parametrize("batch", ["never", "always"])
async def test_deadline_error_of_a_step_counts_as_failed(batch: str) -> None:
    def late(_: Any) -> Any:
        raise DeadlineExceededError("the store did not answer")

    async with af.Session() as session:
        call = await opened(session, hidden(late), batch=batch)
        [found] = await answers(call, [[1, 2]])
        assert isinstance(found, DeadlineExceededError)
        counted = call.statistics()
        assert (counted.failed, counted.expired, counted.answered) == (1, 0, 0)


@pytest.mark.parametrize("sizes", [(4, 2, 64), (4, 32), (0, 64), (2, 2, 64), (4, 128)], ids=str)
def test_model_options_reject_batch_sizes_that_do_not_rise_to_the_maximum(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="allowed_batch_sizes") as caught:
        ModelOptions(allowed_batch_sizes=sizes)
    assert (caught.value.expected, caught.value.actual) == ("sizes up to 64", list(sizes))


@pytest.mark.parametrize("sizes", [64, (1.5, 64), (True, 64), ("8", 64)], ids=str)
def test_model_options_reject_batch_sizes_of_other_types(sizes: Any) -> None:
    with pytest.raises(DTypeError, match="allowed_batch_sizes"):
        ModelOptions(allowed_batch_sizes=sizes)
