"""Checkpoints and SavedModels with a special file among theirs: a typed error, and no blocking on pipes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
import aioflow.interop.tensorflow
from aioflow.errors import OpError
from aioflow.formats.temporary_files import held
from aioflow.interop import safetensors

DATA = Path(__file__).parent / "data"


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _circle(path: Path) -> None:
    path.symlink_to(path.name)


def _nowhere(path: Path) -> None:
    path.symlink_to("somewhere else")


INSTEAD: dict[str, Callable[[Path], None]] = {
    "a pipe": _pipe,
    "a folder": Path.mkdir,
    "a device": _endless,
    "a link to itself": _circle,
    "a link to nothing": _nowhere,
}
pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


def _read_all(folder: Path) -> dict[str, Any]:
    reader = af.train.load_checkpoint(folder)
    return {name: reader.read(name) for name in reader.names()}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("instead", INSTEAD.values(), ids=INSTEAD)
@pytest.mark.parametrize("kind", ["v1", "v1_sharded", "v2", "v2_sharded", "objects"])
def test_checkpoint_with_a_special_file_is_refused(tmp_path: Path, kind: str, instead: Callable[[Path], None]) -> None:
    names = sorted(path.name for path in (DATA / "checkpoints" / kind).iterdir() if not path.name.endswith(".meta"))
    for name in names:
        folder = tmp_path / name
        shutil.copytree(DATA / "checkpoints" / kind, folder)
        (folder / name).unlink()
        instead(folder / name)
        with pytest.raises(OpError):
            _read_all(folder)


async def _initialized(folder: Path) -> None:
    loaded = af.interop.tensorflow.load_saved_model(folder)
    async with af.Session(graph=loaded.graph) as session:
        await loaded.initialize(session)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("instead", INSTEAD.values(), ids=INSTEAD)
async def test_saved_model_with_a_special_file_is_refused(tmp_path: Path, instead: Callable[[Path], None]) -> None:
    model = DATA / "saved_model_v2"
    for name in ("saved_model.pb", *(f"variables/{path.name}" for path in (model / "variables").iterdir())):
        folder = tmp_path / name.replace("/", " ")
        shutil.copytree(model, folder)
        (folder / name).unlink()
        instead(folder / name)
        with pytest.raises(OpError):
            await _initialized(folder)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("instead", INSTEAD.values(), ids=INSTEAD)
def test_graph_or_weights_as_a_special_file_are_refused(tmp_path: Path, instead: Callable[[Path], None]) -> None:
    instead(tmp_path / "graph.pb")
    with pytest.raises(OpError):
        af.interop.tensorflow.load_graph(tmp_path / "graph.pb")
    instead(tmp_path / "model.safetensors.index.json")
    with pytest.raises(OpError):
        safetensors.open(tmp_path / "model.safetensors.index.json")
    instead(tmp_path / "m.safetensors")
    with pytest.raises(OpError):
        safetensors.open(tmp_path / "m.safetensors")


def test_links_to_files_are_followed(tmp_path: Path) -> None:
    """Read a checkpoint through links, as in model stores whose files are named by their contents."""
    (tmp_path / "links").mkdir()
    for path in (DATA / "checkpoints" / "v2_sharded").iterdir():
        (tmp_path / "links" / path.name).symlink_to(path)
    found, expected = _read_all(tmp_path / "links"), _read_all(DATA / "checkpoints" / "v2_sharded")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.timeout(30)
def test_held_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.index")
    for alone in (False, True):
        with held(tmp_path, ["m.index"], alone=alone) as found:
            assert list(found) in (["m.index"], [])
