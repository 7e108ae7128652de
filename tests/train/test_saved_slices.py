"""Partitioned variables in checkpoints: one tensor for each, which can be restored into other parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.formats.checkpoint import CheckpointReader, write_checkpoint
from aioflow.kernels.io.checkpoints import JoinedRows, whole_tensors
from tests.net.clusters import cluster

TABLE = np.arange(20, dtype=np.float32).reshape(10, 2)


def partitioned(name: str, parts: int, axis: int = 0, initial: Any = None) -> af.PartitionedVariable:
    initializer = af.zeros_initializer() if initial is None else initial
    partitioner = af.fixed_size_partitioner(parts, axis)
    return af.get_variable(
        name, None if initial is not None else [10, 2], initializer=initializer, partitioner=partitioner
    )


async def saved(path: Path, var_list: Any = None) -> CheckpointReader:
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        prefix = await af.train.Saver(var_list).save(session, path / "model")
    return CheckpointReader(str(prefix))


async def restored(path: Path, variable: Any, var_list: Any = None) -> Any:
    async with af.Session() as session:
        await af.train.Saver(var_list).restore(session, path / "model")
        return await session.run(af.convert_to_tensor(variable))


@pytest.mark.parametrize(("parts", "axis"), [(1, 0), (3, 0), (2, 1)])
async def test_partitioned_variable_is_restored_into_other_parts(tmp_path: Path, parts: int, axis: int) -> None:
    partitioned("v", parts, axis, TABLE)
    af.Variable(1.0, name="alone")
    reader = await saved(tmp_path)
    assert reader.names() == ["alone", "v"]
    np.testing.assert_array_equal(reader.read("v"), TABLE)
    for other, other_axis in ((4, 0), (2, 1), (1, 0)):
        with af.Graph().as_default():
            variable = partitioned("v", other, other_axis)
            np.testing.assert_array_equal(await restored(tmp_path, variable), TABLE)
    with af.Graph().as_default():  # and into a variable without parts
        np.testing.assert_array_equal(await restored(tmp_path, af.get_variable("v", [10, 2])), TABLE)


async def test_slots_of_parts_are_saved_as_one_tensor(tmp_path: Path) -> None:
    def build(parts: int) -> tuple[Any, list[Any]]:
        v = partitioned("v", parts, 0, TABLE)
        optimizer = af.train.MomentumOptimizer(1.0, 0.5)
        train = optimizer.minimize(af.reduce_sum(v * af.constant(TABLE)))
        return train, [optimizer.get_slot(part, "momentum") for part in v]

    train, _ = build(3)
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        await session.run(train)
        await af.train.Saver().save(session, tmp_path / "model")
    reader = CheckpointReader(str(tmp_path / "model"))
    assert reader.names() == ["v", "v/Momentum"]
    np.testing.assert_array_equal(reader.read("v/Momentum"), TABLE)
    with af.Graph().as_default():
        _, slots = build(2)
        np.testing.assert_array_equal(await restored(tmp_path, af.concat(slots, 0)), TABLE)


async def test_saver_takes_a_dictionary_of_variables_lists_and_parts(tmp_path: Path) -> None:
    v, w = partitioned("v", 3, 0, TABLE), partitioned("w", 2, 0, TABLE + 1)
    reader = await saved(tmp_path, {"all": v, "list": list(w), "first": next(iter(v))})
    assert reader.names() == ["all", "first", "list"]
    np.testing.assert_array_equal(reader.read("all"), TABLE)
    np.testing.assert_array_equal(reader.read("list"), TABLE + 1)
    np.testing.assert_array_equal(reader.read("first"), TABLE[:4])
    with af.Graph().as_default():
        other = partitioned("other", 4)
        np.testing.assert_array_equal(await restored(tmp_path, other, {"list": other}), TABLE + 1)


async def test_saver_takes_a_list_with_a_partitioned_variable(tmp_path: Path) -> None:
    v = partitioned("v", 3, 0, TABLE)
    assert (await saved(tmp_path, [v])).names() == ["v"]


def test_saver_rejects_mixed_parts_and_duplicate_names() -> None:
    v, w = partitioned("v", 3, 0, TABLE), partitioned("w", 2, 0, TABLE)
    with pytest.raises(InvalidArgumentError, match="belong to several"):
        af.train.Saver({"a": [*v, *w]})
    with pytest.raises(DTypeError, match="not a partition of a variable"):
        af.train.Saver({"a": [next(iter(v)), af.Variable(1.0)]})
    with pytest.raises(InvalidArgumentError, match="two variables are saved as 'v'"):
        af.train.Saver([*v, af.Variable(1.0, name="v")])


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert not list(tmp_path.iterdir())


async def test_incomplete_parts_are_not_saved(empty: Path) -> None:
    v = partitioned("v", 3, 0, TABLE)
    with pytest.raises(InvalidArgumentError, match="do not cover the tensor"):
        await saved(empty, list(v)[:2])


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (["4 0,2", "4 1,2"], "overlap"),
        (["4 0,2", "5 2,2"], "tensors of different shapes"),
        (["4 0,2", "4 3,2"], "outside"),
        (["4 0,2", ""], "twice"),
        (["4 0,1", "4 1,3"], "does not fit"),
        (["4 0;2", "4 2,2"], "not a slice"),
        (["0,2", "2,2"], "not a slice"),
    ],
)
async def test_save_rejects_invalid_slices(tmp_path: Path, specs: list[str], message: str) -> None:
    two = np.zeros(2, np.float32)
    save = af.raw_ops.SaveV2(
        prefix=str(tmp_path / "a"), tensor_names=["v", "v"], shape_and_slices=specs, tensors=[two, two]
    )
    async with af.Session() as session:
        with pytest.raises(InvalidArgumentError, match=message):
            await session.run(save)


async def test_restore_reads_a_slice_of_a_tensor(tmp_path: Path) -> None:
    prefix = str(tmp_path / "a")
    write_checkpoint(prefix, {"v": TABLE})

    def restore(spec: str) -> Any:
        return af.raw_ops.RestoreV2(prefix=prefix, tensor_names=["v"], shape_and_slices=[spec], dtypes=[af.float32])

    async with af.Session() as session:
        np.testing.assert_array_equal((await session.run(restore("10 2 3,4:-")))[0], TABLE[3:7])
        np.testing.assert_array_equal((await session.run(restore("10 2 -:1,1")))[0], TABLE[:, 1:])
        with pytest.raises(InvalidArgumentError, match="different shape"):
            await session.run(restore("11 2 3,4:-"))


async def test_restore_rejects_another_shape(tmp_path: Path) -> None:
    write_checkpoint(str(tmp_path / "model"), {"v": TABLE[:9]})
    with pytest.raises(InvalidArgumentError, match="different shape"):
        await restored(tmp_path, partitioned("v", 3))


def test_parts_are_joined_row_by_row_while_reading() -> None:
    class Slow:
        """An array that is read by row ranges."""

        def __init__(self, array: Any) -> None:
            self.shape, self.dtype, self._array, self.released = array.shape, array.dtype, array, 0

        def rows(self, start: int, stop: int) -> Any:
            assert self.released <= start
            return self._array[start:stop]

        def release(self, stop: int) -> None:
            self.released = stop

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return self._array

    middle = Slow(TABLE[4:7])
    joined = whole_tensors(["v"] * 3, ["10 2 7,3:0,2", "10 2 0,4:0,2", "10 2 4,3:0,2"], [TABLE[7:], TABLE[:4], middle])[
        "v"
    ]
    assert isinstance(joined, JoinedRows)
    assert (joined.shape, joined.dtype) == (TABLE.shape, TABLE.dtype)
    np.testing.assert_array_equal(np.asarray(joined), TABLE)
    for start, stop in ((0, 3), (3, 5), (5, 6), (6, 10)):
        np.testing.assert_array_equal(joined.rows(start, stop), TABLE[start:stop])
        assert joined.rows(start, stop).flags.c_contiguous
        joined.release(stop)
    assert middle.released == 3


async def test_error_for_existing_parts_of_another_shape_suggests_clear(tmp_path: Path) -> None:
    async def step(parts: int, clear: bool) -> Any:
        with af.Graph().as_default(), af.device("/job:ps"):
            table = partitioned("t", parts, initial=TABLE) if parts == 2 else partitioned("t", parts)
            saver, whole = af.train.Saver(), table.as_tensor()
            async with af.Session(server.target) as session:
                if clear:
                    await session.clear()
                if parts == 2:
                    await session.run(af.global_variables_initializer())
                    return await saver.save(session, tmp_path / "model")
                await saver.restore(session, tmp_path / "model")
                return await session.run(whole)

    async with cluster("ps", allow_dirs=[tmp_path]) as (server,):
        await step(2, clear=False)
        with pytest.raises(InvalidArgumentError, match="variable t/part_0 exists with a different shape") as caught:
            await step(3, clear=False)
        assert "`await session.clear()`" in caught.value.message
        assert (caught.value.expected, caught.value.actual) == ("(4, 2)", "(5, 2)")
        np.testing.assert_array_equal(await step(3, clear=True), TABLE)
