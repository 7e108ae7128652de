"""Checkpoint retention by count and by hours: the same as that of TensorFlow's saver on the same clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.formats.checkpoint import CheckpointReader

pytestmark = pytest.mark.parity


class Clock:
    """A clock that advances only when the test advances it."""

    def __init__(self) -> None:
        self.now = 1e9

    def time(self) -> float:
        return self.now


def graphs(folder: Path) -> list[str]:
    """Return the names of the checkpoints that have a `.meta` file."""
    return sorted(path.name.removesuffix(".meta") for path in folder.glob("*.meta"))


def theirs(
    tf: Any, folder: Path, patch: pytest.MonkeyPatch, settings: dict[str, Any], gaps: list[float], older: int
) -> tuple[list[str], list[str]]:
    clock = Clock()
    module = __import__("tensorflow.python.training.saver", fromlist=["time"])
    patch.setattr(module, "time", clock)
    with tf.Graph().as_default():
        tf.get_variable("a", initializer=1.0)
        saver = tf.train.Saver(**settings)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for step in range(older):
                saver.save(session, str(folder / "m"), global_step=step)
            if older:
                saver = tf.train.Saver(**settings)
                saver.set_last_checkpoints_with_time([(str(folder / f"m-{s}"), clock.now) for s in range(older)])
            for step, gap in enumerate(gaps, start=older):
                clock.now += gap
                saver.save(session, str(folder / "m"), global_step=step)
    names = sorted(p.name.removesuffix(".index") for p in folder.glob("*.index"))
    assert graphs(folder) == names
    return names, [Path(p).name for p in saver.last_checkpoints]


async def ours(folder: Path, settings: dict[str, Any], gaps: list[float], older: int) -> tuple[list[str], list[str]]:
    clock = Clock()
    with aioflow.Graph().as_default():
        aioflow.get_variable("a", initializer=1.0)
        saver = aioflow.train.Saver(**settings, clock=clock.time)
        async with aioflow.Session() as session:
            await session.run(aioflow.global_variables_initializer())
            for step in range(older):
                await saver.save(session, folder / "m", global_step=step)
            if older:
                saver = aioflow.train.Saver(**settings, clock=clock.time)
                saver.set_last_checkpoints_with_time([(str(folder / f"m-{s}"), clock.now) for s in range(older)])
            for step, gap in enumerate(gaps, start=older):
                clock.now += gap
                await saver.save(session, folder / "m", global_step=step)
    found = sorted(p.name.removesuffix(".manifest.json") for p in folder.glob("*.manifest.json"))  # noqa: ASYNC240
    for name in found:
        assert CheckpointReader(str(folder / name)).read("a") == 1
    assert graphs(folder) == found
    return found, [Path(p).name for p in saver.last_checkpoints]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("settings", "older"),
    [
        ({}, 0),
        ({"max_to_keep": 1}, 0),
        ({"max_to_keep": 2, "keep_checkpoint_every_n_hours": 1.0}, 0),
        ({"max_to_keep": 1, "keep_checkpoint_every_n_hours": 0.5}, 0),
        ({"max_to_keep": 0, "keep_checkpoint_every_n_hours": 1.0}, 0),
        ({"max_to_keep": None}, 0),
        ({"max_to_keep": 2, "keep_checkpoint_every_n_hours": 1.0}, 4),
        ({"max_to_keep": 3, "keep_checkpoint_every_n_hours": 0.25}, 2),
    ],
)
async def test_savers_keep_the_same_checkpoints(
    tf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], older: int, seed: int
) -> None:
    gaps = np.random.default_rng(seed).choice([0.0, 60.0, 900.0, 1800.0, 3600.0, 9000.0], 14).tolist()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").mkdir()
    expected = theirs(tf, tmp_path / "theirs", monkeypatch, settings, gaps, older)
    assert await ours(tmp_path / "ours", settings, gaps, older) == expected
