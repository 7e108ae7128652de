"""TensorFlow's checkpoints of each format version, read by aioflow; aioflow's bundles, read by TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.graph.dtypes import as_dtype

tensorflow: Any = pytest.importorskip("tensorflow")
v1: Any = tensorflow.compat.v1

VALUES: dict[str, Any] = {
    **{
        name: np.array([[0, 1, 2], [3, 100, 5]], as_dtype(name).np_dtype)
        for name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
    },
    **{
        name: np.array([[0, -1.5, 2], [np.inf, 100, np.nan]], as_dtype(name).np_dtype)
        for name in ("float16", "bfloat16", "float32", "float64")
    },
    "complex64": np.array([1 + 2j, -3j], np.complex64),
    "complex128": np.array([1 + 2j, -3j], np.complex128),
    "bool": np.array([True, False]),
    "string": np.array([[b"", b"a\0b"], [b"long" * 1000, "grüße".encode()]], object),
    "scalar": np.float32(2.5),
    "empty": np.zeros((0, 3), np.float32),
    "large": np.arange(1 << 20, dtype=np.float32).reshape(1 << 10, -1),
}
IN_VERSION_1 = {"uint8", "int8", "int16", "int32", "int64", "float32", "float64", "complex64", "complex128", "bool"} | {
    "string",
    "scalar",
    "large",
}


def _saved_by_tensorflow(prefix: Path, version: int, sharded: bool = False) -> dict[str, Any]:
    names = IN_VERSION_1 if version == 1 else set(VALUES)
    with v1.Graph().as_default(), v1.Session() as session:
        for name in sorted(names):
            v1.get_variable(f"scope/{name}", initializer=tensorflow.constant(VALUES[name]), use_resource=version == 2)
        parts = v1.get_variable("parts", (10, 4), partitioner=v1.fixed_size_partitioner(3), use_resource=False)
        session.run(v1.global_variables_initializer())
        v1.train.Saver(write_version=version, sharded=sharded).save(session, str(prefix))
        return {"parts": session.run(tensorflow.convert_to_tensor(parts))} | {f"scope/{n}": VALUES[n] for n in names}


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _same(found: Any, expected: Any) -> None:
    assert found.dtype == np.asarray(expected).dtype
    assert found.shape == np.shape(expected)
    assert found.tobytes() == np.asarray(expected).tobytes() or found.tolist() == np.asarray(expected).tolist()


@pytest.mark.parametrize(("version", "sharded"), [(1, False), (1, True), (2, False), (2, True)])
def test_reader_reads_every_tensorflow_format(tmp_path: Path, version: int, sharded: bool) -> None:
    prefix = tmp_path / "model"
    values = _saved_by_tensorflow(prefix, version, sharded)
    assert af.train.checkpoint_exists(str(prefix))
    newest = af.train.latest_checkpoint(tmp_path)
    assert newest == tensorflow.train.latest_checkpoint(str(tmp_path))
    reader = af.train.load_checkpoint(tmp_path)
    assert reader.names() == sorted(values)
    for name, value in values.items():
        _same(reader.read(name), value)
        assert (reader.shape(name), reader.dtype(name).np_dtype) == (np.shape(value), np.asarray(value).dtype)
    assert af.train.list_variables(prefix) == [(name, list(np.shape(values[name]))) for name in sorted(values)]
    assert len(af.train.get_checkpoint_mtimes([str(prefix)])) == 1
    af.train.remove_checkpoint(str(prefix))
    assert not af.train.checkpoint_exists(str(prefix))
    assert [name for name in _files(tmp_path) if not name.endswith(".meta")] == ["checkpoint"]


@pytest.mark.parametrize("version", [1, 2])
async def test_saver_restores_tensorflow_checkpoints_into_other_partitions(tmp_path: Path, version: int) -> None:
    values = _saved_by_tensorflow(tmp_path / "model", version)
    with af.Graph().as_default():
        large = af.get_variable("scope/large", (1 << 10, 1 << 10))
        text = af.get_variable("scope/string", initializer=af.zeros((2, 2), af.string))
        parts = af.get_variable("parts", (10, 4), partitioner=af.fixed_size_partitioner(4))
        async with af.Session() as session:
            await af.train.Saver().restore(session, tmp_path / "model")
            _same(await session.run(large), values["scope/large"])
            _same(await session.run(text), values["scope/string"])
            _same(await session.run(af.convert_to_tensor(parts)), values["parts"])


async def test_saver_restores_object_checkpoints_by_variable_name(tmp_path: Path) -> None:
    one = tensorflow.Variable(np.arange(3, dtype=np.float32), name="dense/kernel")
    other = tensorflow.Variable(np.float32(7), name="dense/bias")
    prefix = tensorflow.train.Checkpoint(model=tensorflow.train.Checkpoint(k=one, b=other)).save(str(tmp_path / "m"))
    assert af.train.latest_checkpoint(tmp_path) == prefix
    reader = af.train.load_checkpoint(prefix)
    assert "model/k/.ATTRIBUTES/VARIABLE_VALUE" in reader.names()
    with af.Graph().as_default():
        kernel, bias = af.get_variable("dense/kernel", (3,)), af.get_variable("dense/bias", ())
        async with af.Session() as session:
            await af.train.Saver().restore(session, prefix)
            _same(await session.run(kernel), one.numpy())
            _same(await session.run(bias), other.numpy())


async def test_tensorflow_restores_bundles_of_a_saver(tmp_path: Path) -> None:
    with af.Graph().as_default():
        for name, value in VALUES.items():
            af.get_variable(name, initializer=af.constant(value))
        parts = af.get_variable("parts", (10, 4), partitioner=af.fixed_size_partitioner(3))
        step = af.train.get_or_create_global_step()
        async with af.Session() as session:
            await session.run(af.global_variables_initializer())
            saver = af.train.Saver(write_version=2, max_to_keep=2)
            for number in range(4):
                await session.run(step.assign(number))
                prefix = await saver.save(session, tmp_path / "m", step)
            whole = await session.run(af.convert_to_tensor(parts))
    assert tensorflow.train.latest_checkpoint(str(tmp_path)) == prefix == str(tmp_path / "m-3")
    assert _files(tmp_path) == [
        "checkpoint",
        *(f"m-{n}.{end}" for n in (2, 3) for end in ("data-00000-of-00001", "index", "meta")),
    ]
    reader = tensorflow.train.load_checkpoint(str(tmp_path))
    for name, value in {**VALUES, "parts": whole}.items():
        _same(np.asarray(reader.get_tensor(name)), value)
    with v1.Graph().as_default(), v1.Session() as session:
        large = v1.get_variable("large", (1 << 10, 1 << 10))
        text = v1.get_variable("string", initializer=tensorflow.zeros((2, 2), tensorflow.string))
        theirs = v1.get_variable("parts", (10, 4), partitioner=v1.fixed_size_partitioner(5))
        v1.train.Saver().restore(session, prefix)
        _same(session.run(large), VALUES["large"])
        _same(session.run(text), VALUES["string"])
        _same(session.run(tensorflow.convert_to_tensor(theirs)), whole)


DATA = Path(__file__).parents[1] / "interop/tensorflow/data/checkpoints"


@pytest.mark.parametrize("prefix", ["v2/model-3", "v2_sharded/model-3", "objects/model-1"])
def test_reader_has_the_methods_of_tensorflow(prefix: str) -> None:
    theirs, ours = (module.train.load_checkpoint(str(DATA / prefix)) for module in (tensorflow, af))
    assert ours.get_variable_to_shape_map() == theirs.get_variable_to_shape_map()
    dtypes = {name: dtype.name for name, dtype in theirs.get_variable_to_dtype_map().items()}
    assert {name: dtype.name for name, dtype in ours.get_variable_to_dtype_map().items()} == dtypes
    assert not ours.has_tensor("nothing")
    for name in dtypes:
        assert ours.has_tensor(name)
        found, expected = ours.get_tensor(name), theirs.get_tensor(name)
        assert type(found) is type(expected)
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(af.errors.NotFoundError, match="nothing"):
        ours.get_tensor("nothing")


async def test_variables_initialized_from_a_checkpoint(tmp_path: Path) -> None:
    expected = _saved_by_tensorflow(tmp_path / "model", 2)
    maps: list[Any] = [{"scope/": "new/"}, {"/": "deep/"}, {"parts": "whole", "scope/scalar": "new/scalar"}]
    for pairs in maps:
        found: list[Any] = []
        scope = "scope/" if "/" in pairs else ""
        for m in (v1, af):
            with m.Graph().as_default():
                target = next(iter(pairs.values()))
                names = (
                    [f"{target}{scope}{n}" for n in ("scalar", "float32")] if target.endswith("/") else ["new/scalar"]
                )
                made = [
                    m.get_variable(n, (2, 3) if n.endswith("32") else (), initializer=m.zeros_initializer())
                    for n in names
                ]
                whole = m.get_variable("whole", (10, 4), partitioner=m.fixed_size_partitioner(3))
                m.train.init_from_checkpoint(str(tmp_path / "model"), pairs)
                fetches = [*made, m.convert_to_tensor(whole)] if "parts" in pairs else made
                if m is v1:
                    with m.Session() as session:
                        session.run(m.global_variables_initializer())
                        found.append(session.run(fetches))
                else:
                    async with m.Session() as session:
                        await session.run(m.global_variables_initializer())
                        found.append(await session.run(fetches))
        assert len(found[0]) == len(found[1])
        for theirs, ours in zip(*found, strict=True):
            np.testing.assert_array_equal(theirs, ours)
    assert expected
