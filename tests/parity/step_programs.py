"""Programs of several steps, run in both systems. The result of each step is a value or the name of an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

import aioflow

__all__ = ["Program", "ours", "plain", "steps", "theirs"]

Program = Callable[[Any], list[tuple[Any, dict[Any, Any]]]]


def plain(value: Any) -> Any:
    """Return fetched values as lists, which can be compared."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value if value is None or isinstance(value, bytes) else np.asarray(value).tolist()


def theirs(tf: Any, program: Program) -> list[Any]:
    """Return TensorFlow's value, or the name of its error, for each step. Steps time out after 1 s."""
    found = []
    with tf.Graph().as_default():
        program_steps = program(tf)
        config = tf.ConfigProto(operation_timeout_in_ms=1000)
        with tf.Session(config=config) as session:
            for fetch, feeds in program_steps:
                try:
                    found.append(plain(session.run(fetch, feeds)))
                except tf.errors.OpError as error:
                    found.append(type(error).__name__)
    return found


def ours(program: Program) -> list[Any]:
    """Return the same as `theirs`, by aioflow."""

    async def run() -> list[Any]:
        found = []
        with aioflow.Graph().as_default():
            program_steps = program(aioflow)
            async with aioflow.Session(config=aioflow.SessionConfig(operation_timeout=1.0)) as session:
                for fetch, feeds in program_steps:
                    try:
                        found.append(plain(await session.run(fetch, feeds)))
                    except aioflow.errors.OpError as error:
                        found.append(type(error).__name__)
        return found

    return asyncio.run(run())


def steps(*fetches: Any) -> list[tuple[Any, dict[Any, Any]]]:
    """Return one step without feeds for each fetch."""
    return [(f, {}) for f in fetches]
