"""Partial runs against TensorFlow's: the same calls return the same values or the same error code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow

pytestmark = pytest.mark.parity

# Each program: the setup (fetches, feeds), then the calls (fetches, feeds). a, b, c are fed; r1 = a + b; r2 = r1 * c.
PROGRAMS: list[tuple[list[str], list[str], list[tuple[Any, dict[str, float]]]]] = [
    (["r1", "r2"], ["a", "b", "c"], [("r1", {"a": 1, "b": 2}), ("r2", {"c": 17}), ("r2", {"c": 17})]),
    (["r1", "r2"], ["a", "b", "c"], [(["r1", "r2"], {"a": 1, "b": 2, "c": 3})]),
    (["r1", "r2"], ["a", "b", "c"], [("r2", {"a": 1, "b": 2}), ("r1", {"a": 1, "b": 2})]),
    (["r1", "r2"], ["a", "b", "c"], [("r1", {"a": 1, "b": 2}), ("r1", {"c": 1}), ("r2", {"c": 1})]),
    (["r1", "r2"], ["a", "b", "c"], [("r1", {"a": 1, "b": 2}), ("r2", {"a": 1, "c": 1}), ("r2", {"c": 1})]),
    (["r1"], ["a", "b"], [("r2", {"a": 1}), ("r1", {"c": 1}), ("r1", {"a": 1, "b": 5})]),
    (["r1", "r2"], ["a", "b", "c"], [([], {"a": 1}), ([], {"b": 1}), (["r2", "r1"], {"c": 4})]),
    (["r2"], ["r1", "c"], [("r2", {"r1": 3, "c": 4})]),
    (["r1"], ["a", "a", "b"], []),
]


def tensors(module: Any) -> dict[str, Any]:
    found = {n: module.placeholder("float32", [], name=n) for n in "abc"}
    found["r1"] = module.add(found["a"], found["b"], name="r1")
    found["r2"] = module.multiply(found["r1"], found["c"], name="r2")
    return found


def pick(found: dict[str, Any], names: Any) -> Any:
    return found[names] if isinstance(names, str) else [found[n] for n in names]


def outcome(value: Any) -> Any:
    return np.asarray(value).tolist()


def theirs(tf: Any, program: Any) -> list[Any]:
    fetches, feeds, calls = program
    log: list[Any] = []
    with tf.Graph().as_default(), tf.Session() as session:
        found = tensors(tf)
        try:
            handle = session.partial_run_setup(pick(found, fetches), pick(found, feeds))
        except tf.errors.OpError as error:
            return [error.error_code]
        for wanted, given in calls:
            try:
                fed = {found[n]: v for n, v in given.items()}
                log.append(outcome(session.partial_run(handle, pick(found, wanted), fed)))
            except tf.errors.OpError as error:
                log.append(error.error_code)
                if error.error_code == 3:
                    break  # TensorFlow ends the run at the first rejected call; aioflow leaves it unchanged
    return log


async def ours(program: Any) -> list[Any]:
    fetches, feeds, calls = program
    log: list[Any] = []
    with aioflow.Graph().as_default() as graph:
        found = tensors(aioflow)
    async with aioflow.Session(graph=graph) as session:
        try:
            handle = await session.partial_run_setup(pick(found, fetches), pick(found, feeds))
        except aioflow.errors.OpError as error:
            return [error.error_code]
        for wanted, given in calls:
            try:
                fed = {found[n]: v for n, v in given.items()}
                log.append(outcome(await session.partial_run(handle, pick(found, wanted), fed)))
            except aioflow.errors.OpError as error:
                log.append(error.error_code)
    return log


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
async def test_partial_runs(tf: Any, program: Any) -> None:
    expected = theirs(tf, program)
    assert expected
    assert (await ours(program))[: len(expected)] == expected
