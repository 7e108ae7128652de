"""Files of a store whose `read` and `readinto` return fewer bytes than asked, as raw files may."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DataLossError
from aioflow.formats.checkpoint import CheckpointReader, write_checkpoint
from aioflow.formats.stores import StoredFile, store_at
from aioflow.formats.tensor_file import TensorFile
from aioflow.saved import save
from tests.saved.models import GIVEN, WANTED, graph_with_a_layer, outputs

MEMORY: Any = fsspec.filesystem("memory")
VALUES = {"a": np.arange(1000.0), "b": np.arange(7)}


class Raw(RawIOBase):
    """A file whose reads return at most `most` bytes."""

    def __init__(self, file: Any, most: int) -> None:
        self._file = file
        self._most = most

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, *where: int) -> int:
        return int(self._file.seek(*where))

    def readinto(self, target: Any) -> int:
        data = self._file.read(min(self._most, len(target)))
        target[: len(data)] = data
        return len(data)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the URL of a folder, whose files return at most 5 bytes at once."""
    folder, opened = f"/{uuid.uuid4().hex}", type(MEMORY)._open

    def shortened(system: Any, path: str, mode: str = "rb", **options: Any) -> Any:
        file = opened(system, path, mode, **options)
        return Raw(file, 5) if mode == "rb" else file

    monkeypatch.setattr(type(MEMORY), "_open", shortened)
    yield f"memory:/{folder}"
    MEMORY.rm(folder, recursive=True)


def written(place: str, **options: Any) -> str:
    write_checkpoint(f"{place}/m", VALUES, **options)
    return f"{place}/m"


def only_file(place: str) -> StoredFile:
    (name,) = [name for name in store_at(place).names() if name.endswith(".safetensors")]
    return StoredFile(store_at(place), name)


def test_short_reads_of_a_tensor_file_are_continued(place: str) -> None:
    written(place)
    file = TensorFile(only_file(place))
    for name, value in VALUES.items():
        np.testing.assert_array_equal(file.read(name), value)


def test_tensor_file_that_becomes_shorter_is_damaged(place: str) -> None:
    written(place)
    stored = only_file(place)
    file = TensorFile(stored)
    path = str(stored).removeprefix("memory:/")
    MEMORY.pipe_file(path, MEMORY.cat_file(path)[:-3])
    with pytest.raises(DataLossError, match="truncated"):
        [file.read(name) for name in VALUES]


@pytest.mark.parametrize("options", [{}, {"base": ""}], ids=["whole", "incremental"])
def test_short_reads_of_a_checkpoint_are_continued(place: str, options: Any) -> None:
    reader = CheckpointReader(written(place, **options))
    for name, value in VALUES.items():
        np.testing.assert_array_equal(reader.read(name), value)


def test_short_reads_of_a_checkpoint_of_version_1_are_continued(place: str) -> None:
    table = Path(__file__).parents[1] / "interop/tensorflow/data/checkpoints/v1/model-3"
    MEMORY.pipe_file(f"{place.removeprefix('memory:/')}/model-3", table.read_bytes())
    found, expected = CheckpointReader(f"{place}/model-3"), CheckpointReader(str(table))
    names = expected.get_variable_to_shape_map()
    assert found.get_variable_to_shape_map() == names != {}
    for name in names:
        np.testing.assert_array_equal(found.read(name), expected.read(name))


async def test_short_reads_of_a_model_are_continued(place: str) -> None:
    built = graph_with_a_layer()
    async with af.Session(graph=built.graph) as session:
        await session.run([v.initializer for v in built.graph.get_collection("variables")])
        await save(session, f"{place}/model", built.signature)
    found = await outputs(f"{place}/model", x=GIVEN)
    np.testing.assert_allclose(found["y"], WANTED, rtol=1e-6)
