"""`examples/own_backend.py`: the backend conforms, and sessions compute on it with a minimum of copies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError
from aioflow.loading.installed import EntryPoint
from aioflow.runtime import device
from aioflow.runtime.device import load_backend
from aioflow.testing.check_backend import CHECKS, check_backend
from examples import own_backend
from examples.own_backend import CountedBackend, CountedDevice, Traffic

HERE: Final = "/device:COUNTED:0"


async def test_the_backend_conforms() -> None:
    results = await check_backend(CountedBackend)
    assert [result.name for result in results] == [check.__name__ for check in CHECKS]


async def test_the_example_prints_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    await own_backend.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CHECKS)
    assert all(line.startswith("ok ") for line in lines)


def test_the_example_has_at_most_250_lines() -> None:
    assert len(Path(own_backend.__file__).read_text(encoding="utf-8").splitlines()) <= 250


def test_arrays_do_not_mix_with_those_of_the_host() -> None:
    xp, value = CountedDevice(0).xp, np.ones(3)
    array = xp.asarray(value)
    assert (array + np.float64(2)).tolist() == [3, 3, 3]
    assert (np.float64(2) - array).tolist() == [1, 1, 1]
    for mix in (
        lambda: array + value,
        lambda: value * array,
        lambda: xp.concatenate([array, value]),
        lambda: array[value.astype(int)],
        lambda: np.asarray(array),
        lambda: np.add(value, array),
    ):
        with pytest.raises(TypeError):
            mix()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[CountedDevice]:
    """Return the first device of the backend, as if the entry point of its docstring were installed."""
    real = device.declared
    own = EntryPoint("counted", "examples.own_backend:CountedBackend")

    def with_own(group: str) -> list[Any]:
        return [*real(group), *([own] if group == device.ENTRY_POINTS else [])]

    monkeypatch.setattr(device, "declared", with_own)
    device._loaded.cache_clear()
    load_backend.cache_clear()
    found = load_backend("counted").device(0)
    assert isinstance(found, CountedDevice)
    yield found
    device._loaded.cache_clear()
    load_backend.cache_clear()


async def test_a_session_finds_the_backend_by_its_entry_point(counted: CountedDevice) -> None:
    async with af.Session() as session:
        names = [name.rpartition("device:")[2] for name in session.list_devices()]
    assert names[0] == "CPU:0"
    assert {"COUNTED:0", "COUNTED:1"} <= set(names)


@pytest.mark.parametrize(
    ("place", "counts", "expected"),
    [("", {}, False), ("", {"COUNTED": 1}, True), ("/cpu:0", {"COUNTED": 1}, False), (HERE, {}, True)],
)
async def test_the_backend_is_used_on_request_or_by_device_count(
    counted: CountedDevice, place: str, counts: dict[str, int], expected: bool
) -> None:
    x = af.placeholder("float32", [2])
    with af.device(place):
        y = af.tanh(x) + 1.0
    async with af.Session(config=af.SessionConfig(device_count=counts, placement="first")) as session:
        before = counted.traffic.into
        np.testing.assert_allclose(await session.run(y, {x: [0.0, 1.0]}), np.tanh([0.0, 1.0]) + 1.0, rtol=1e-6)
        assert (counted.traffic.into > before) == expected


async def test_only_feeds_and_fetches_are_copied(counted: CountedDevice) -> None:
    x = af.placeholder("float32", [None, 3])
    with af.device(HERE):
        rows = af.shape(x)[0]  # always on the host
        y = af.reshape(af.tanh(x) * 2.0, [3, rows])
    async with af.Session() as session:
        fed = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
        want = (np.tanh(fed) * 2).reshape(3, 4)
        np.testing.assert_array_equal(await session.run(y, {x: fed}), want)
        counted.traffic.into = counted.traffic.out = counted.traffic.looks = 0  # the constant has been copied by now
        np.testing.assert_array_equal(await session.run(y, {x: fed}), want)
        assert counted.traffic == Traffic(into=1, out=1, looks=0)


def train(place: str) -> tuple[Any, Any, Any]:
    with af.device(place):
        x = af.constant(np.linspace(-1, 1, 60, dtype=np.float32).reshape(20, 3))
        w = af.Variable(np.ones((3, 1), np.float32), name="w")
        loss = af.reduce_mean(af.square(af.matmul(x, w) - af.reduce_sum(x, 1, keepdims=True) * 3.0))
        step = af.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    return step, w, af.global_variables_initializer()


async def test_variables_stay_on_the_backend_during_training(counted: CountedDevice) -> None:
    found = []
    for place in ("/cpu:0", HERE):
        with af.Graph().as_default():
            step, w, init = train(place)
            async with af.Session(config=af.SessionConfig(allow_soft_placement=True)) as session:
                await session.run(init)
                await session.run(step)
                before = counted.traffic.into, counted.traffic.out
                for _ in range(30):
                    await session.run(step)
                assert (counted.traffic.into, counted.traffic.out) == before
                found.append(await session.run(w))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    assert not np.allclose(found[1], 1.0)


async def test_loops_and_branches_run_on_the_backend(counted: CountedDevice) -> None:
    x = af.placeholder("float32", [3])
    with af.device(HERE):
        y = af.while_loop(
            lambda i, v: i < 4, lambda i, v: (i + 1, af.cond(i > 1, lambda: af.exp(-v), lambda: v * 2.0)), [0, x]
        )[1]
    async with af.Session() as session:
        fed = np.arange(3, dtype=np.float32)
        np.testing.assert_array_equal(await session.run(y, {x: fed}), np.exp(-np.exp(-(fed * 4))))
    assert counted.traffic.looks == 0  # the counter and the conditions are on the host


async def test_a_failing_assert_shows_the_values(counted: CountedDevice) -> None:
    x = af.placeholder("int32", [3])
    with af.device(HERE):
        doubled = x * 2
        check = af.Assert(af.reduce_all(doubled < 5), [doubled])
    async with af.Session() as session:
        await session.run(check, {x: [0, 1, 2]})
        with pytest.raises(InvalidArgumentError, match=r"\[2 4 6\]"):
            await session.run(check, {x: [1, 2, 3]})


async def test_values_move_directly_between_backend_devices(counted: CountedDevice) -> None:
    x = af.placeholder("float32", [3])
    with af.device(HERE):
        a, shape = af.exp(x), af.shape(x)
    with af.device("/device:COUNTED:1"):
        b = a + 1.0
        c = af.tile(b, shape)
    async with af.Session() as session:
        np.testing.assert_array_equal(await session.run(c, {x: np.zeros(3)}), np.full(9, 2.0))
    assert (counted.traffic.out, counted.traffic.looks) == (0, 0)


async def test_fetches_may_stay_on_the_backend(counted: CountedDevice) -> None:
    x = af.placeholder("float32", [3])
    with af.device(HERE):
        y = af.exp(x)
    async with af.Session(config=af.SessionConfig(fetch_to_host=False)) as session:
        got = await session.run(y, {x: np.zeros(3)})
    np.testing.assert_array_equal(np.from_dlpack(got), np.ones(3))
    assert counted.traffic.out == 0
