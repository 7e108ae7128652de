"""The declaration of a loop over tokens: it is saved with a model, and must fit its signatures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aioflow as af
from aioflow.errors import DataLossError, DTypeError, InvalidArgumentError
from aioflow.saved import Signature, TokenLoop, TokenState, load, save
from tests.saved.altering import change_manifest

LOOP = TokenLoop(
    "tokens",
    "logits",
    64,
    (TokenState("past", "new", 0, 1), TokenState("total", "sum")),
    lengths="lengths",
    end_token=3,
)


def signature() -> Signature:
    """Build a step with a state for each token, and one for the whole stream."""
    tokens = af.placeholder("int32", [None, None], name="tokens")
    lengths = af.placeholder("int64", [None], name="lengths")
    past = af.placeholder("float32", [None, None, 2], name="past")
    total = af.placeholder("float32", [None, 4], name="total")
    new = af.tile(af.expand_dims(af.cast(tokens, "float32"), 2), [1, 1, 2])
    logits = total + af.cast(af.expand_dims(lengths, 1), "float32") + af.reduce_sum(past)
    inputs = {"tokens": tokens, "lengths": lengths, "past": past, "total": total}
    return Signature(inputs, {"logits": logits, "new": new, "sum": total * 2.0})


async def save_loop(folder: Path, loop: Any = LOOP) -> Path:
    with af.Graph().as_default() as graph:
        called = signature()
    async with af.Session(graph=graph) as session:
        await save(session, folder, called, token_loop=loop)
    return folder


async def test_a_saved_token_loop_is_loaded(tmp_path: Path) -> None:
    assert load(await save_loop(tmp_path / "m")).token_loop == LOOP
    assert load(await save_loop(tmp_path / "none", None)).token_loop is None


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": "lengths"},
        {"tokens": "other"},
        {"logits": "other"},
        {"logits": "new"},
        {"max_length": 0},
        {"states": LOOP.states[:1]},
        {"states": ("past",)},
        {"states": (TokenState("past", "new", 0, 0), LOOP.states[1])},
        {"states": (TokenState("past", "new", 0, 2), LOOP.states[1])},
        {"states": (TokenState("past", "new", 0, 3), LOOP.states[1])},
        {"states": (TokenState("past", "new", -3, 1), LOOP.states[1])},
        {"states": (TokenState("past", "new"), LOOP.states[1])},
        {"states": (TokenState("past", "sum", 0, 1), LOOP.states[1])},
        {"lengths": None},
        {"step": "other"},
        {"prompt": "other"},
        {"end_token": 4},
        {"end_token": -1},
        {"encoding": "latin-1"},
        {"encoding": "utf-8"},
    ],
)
async def test_a_token_loop_that_does_not_fit_is_rejected(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises((InvalidArgumentError, DTypeError)):
        await save_loop(tmp_path / "m", dataclasses.replace(LOOP, **change))
    assert not (tmp_path / "m").exists()


def put(key: str, value: Any) -> Callable[[Any], None]:
    return lambda loop: loop.update({key: value})


@pytest.mark.parametrize(
    "change",
    [
        put("tokens", "other"),
        put("tokens", 1),
        put("max_length", 0),
        put("max_length", "64"),
        put("max_length", 1 << 70),
        put("states", None),
        put("states", [[]]),
        put("states", []),
        put("lengths", 3),
        put("step", None),
        put("end_token", 1.5),
        put("end_token", 4),
        put("encoding", "x"),
        lambda loop: loop["states"][0].update(row_axis=-1),
        lambda loop: loop["states"][0].update(length_axis=True),
        lambda loop: loop.pop("logits"),
        lambda loop: loop.clear(),
    ],
)
async def test_a_damaged_token_loop_is_reported(tmp_path: Path, change: Callable[[Any], None]) -> None:
    await save_loop(tmp_path / "m")
    change_manifest(tmp_path / "m", lambda content: change(content["token_loop"]))
    with pytest.raises(DataLossError):
        load(tmp_path / "m")
