"""Reading of checkpoints that TensorFlow wrote (`make_data.py`), without TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af

DATA = Path(__file__).parent / "data"
FOLDERS = ["v1", "v1_sharded", "v2", "v2_sharded"]


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    with np.load(DATA / "expected.npz") as found:
        return {name.removeprefix("variable/"): found[name] for name in found if name.startswith("variable/")}


@pytest.mark.parametrize("folder", FOLDERS)
def test_checkpoint_reader_reads_each_variable(folder: str, expected: dict[str, Any]) -> None:
    reader = af.train.load_checkpoint(DATA / "checkpoints" / folder)
    assert reader.names() == sorted([*expected, "words"])
    for name, value in expected.items():
        found = reader.read(name)
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found, value)
    assert reader.read("words").tolist() == [b"", b"two", b"\0three"]
    assert reader.step == 3


def test_checkpoint_reader_has_tensorflow_methods(expected: dict[str, Any]) -> None:
    reader = af.train.load_checkpoint(DATA / "checkpoints" / "v2")
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    assert {name: (shapes[name], dtypes[name]) for name in expected} == {
        name: (list(value.shape), af.as_dtype(value.dtype)) for name, value in expected.items()
    }
    assert [reader.has_tensor(name) for name in ("step", "steps")] == [True, False]
    assert isinstance(reader.get_tensor("step"), np.int64)
    np.testing.assert_array_equal(reader.get_tensor("layer/kernel"), expected["layer/kernel"])


@pytest.mark.parametrize("folder", FOLDERS)
async def test_saver_restores_tensorflow_checkpoints(folder: str, expected: dict[str, Any]) -> None:
    kernel = af.get_variable("layer/kernel", (3, 2))
    parts = af.get_variable("parts", (10, 2), partitioner=af.fixed_size_partitioner(4))
    words = af.get_variable("words", initializer=af.zeros((3,), af.string))
    async with af.Session() as session:
        newest = af.train.latest_checkpoint(DATA / "checkpoints" / folder)
        assert newest is not None
        await af.train.Saver().restore(session, newest)
        np.testing.assert_array_equal(await session.run(kernel), expected["layer/kernel"])
        np.testing.assert_array_equal(await session.run(af.convert_to_tensor(parts)), expected["parts"])
        assert (await session.run(words)).tolist() == [b"", b"two", b"\0three"]


async def test_object_checkpoint_also_has_variable_names(expected: dict[str, Any]) -> None:
    reader = af.train.load_checkpoint(DATA / "checkpoints" / "objects")
    assert "layer/kernel" in reader
    assert "dense/w/.ATTRIBUTES/VARIABLE_VALUE" in reader.names()
    with af.Graph().as_default():
        kernel = af.get_variable("layer/kernel", (3, 2))
        async with af.Session() as session:
            await af.train.Saver().restore(session, DATA / "checkpoints" / "objects" / "model-1")
            np.testing.assert_array_equal(await session.run(kernel), expected["layer/kernel"])


def test_missing_shard_is_reported(tmp_path: Path) -> None:
    for path in (DATA / "checkpoints" / "v2").iterdir():
        if path.suffix == ".index":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    reader = af.train.load_checkpoint(tmp_path / "model-3")
    with pytest.raises(af.errors.NotFoundError, match="data-00000-of-00001"):
        reader.read("step")


async def test_restore_from_a_file_of_a_checkpoint_suggests_its_prefix(tmp_path: Path) -> None:
    index = DATA / "checkpoints" / "v2" / "model-3.index"
    with af.Graph().as_default():
        af.get_variable("layer/kernel", (3, 2), initializer=af.zeros_initializer())
        saver = af.train.Saver()
        async with af.Session() as session:
            with pytest.raises(af.errors.NotFoundError, match=r"(?s)prefix.*expected: \S*v2/model-3\n"):
                await saver.restore(session, index)
            await session.run(af.global_variables_initializer())
            prefix = await saver.save(session, tmp_path / "ours")
            with pytest.raises(af.errors.NotFoundError, match=r"(?s)prefix.*expected: \S*/ours\n"):
                await saver.restore(session, f"{prefix}.manifest.json")
            with pytest.raises(af.errors.NotFoundError, match=r"none\.manifest\.json.*none\.index"):
                await saver.restore(session, tmp_path / "none")
