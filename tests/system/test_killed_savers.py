"""Processes that save in a loop and are killed: the next one removes what they have left."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import aioflow as af
from tests.processes import program

PROGRAM = Path(__file__).with_name("looping_saver.py")
KILLS = 6  # for each kind
MOST = 0.03  # seconds from a checkpoint to the signal: a few saves


def run_saver(folder: Path, kind: str, saves: int, seconds: float | None) -> None:
    """Run a saver; kill it `seconds` after its first checkpoint, if that is given."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with program(str(PROGRAM), str(folder), kind, str(saves), env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdecimal()
        if seconds is None:
            assert process.wait(120) == 0
        else:
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)


@pytest.mark.parametrize("kind", ["plain", "blocks", "bundle"])
def test_saver_removes_what_killed_savers_left(tmp_path: Path, kind: str) -> None:
    moments = random.Random(kind)
    for _ in range(KILLS):
        run_saver(tmp_path, kind, 10**6, moments.uniform(0, MOST))
    run_saver(tmp_path, kind, 2, None)
    state = af.train.get_checkpoint_state(tmp_path)
    assert state is not None
    listed = sorted(Path(path).name for path in state.all_model_checkpoint_paths)
    assert len(listed) == 2
    names = {path.name for path in tmp_path.iterdir() if path.suffix != ".blocks"} - {"checkpoint"}
    assert sorted({name.split(".")[0] for name in names}) == listed
    assert not [name for name in names if name.startswith(".")]
    assert len(list(tmp_path.glob("*.blocks"))) == (kind == "blocks")


def test_saved_save_removes_what_killed_saves_left(tmp_path: Path) -> None:
    moments = random.Random("model")
    for _ in range(KILLS):
        run_saver(tmp_path, "model", 10**6, moments.uniform(0, MOST))
    run_saver(tmp_path, "model", 2, None)
    assert os.listdir(tmp_path) == ["model"]
    assert len(os.listdir(tmp_path / "model")) == 5, "the manifest, the graph, the ops, and the weights with theirs"
    assert af.saved.load(tmp_path / "model").outputs
