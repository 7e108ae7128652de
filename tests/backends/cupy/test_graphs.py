"""Tests of captured strands: they equal plain calls, reuse addresses, and are refused where a replay would be wrong."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest

from aioflow.graph import dtypes
from aioflow.kernels.resources import VariableResource
from aioflow_cupy.graphs import CapturedFunction
from tests.backends.cupy.fake_driver import FakeDriver
from tests.backends.cupy.fakes import small_lanes


class Machine:
    """A device, and a function captured on it that counts its calls."""

    def __init__(self, function: Callable[..., tuple[Any, ...]], *values: Any) -> None:
        self.driver = FakeDriver()
        self.device = small_lanes(self.driver, lane_bytes=4096)
        self.variables = [VariableResource(f"v{i}", dtypes.float32, None) for i in range(len(values))]
        self.calls = 0
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(self.put(value))

        def counted(*args: Any) -> tuple[Any, ...]:
            self.calls += 1
            return function(self.driver.xp, self.variables, *args)

        self.captured = self.device.capture(counted, self.variables)
        assert isinstance(self.captured, CapturedFunction)
        self.stats = self.captured.stats

    def put(self, value: Any) -> Any:
        return self.device.transfers.upload(np.asarray(value, np.float32))

    def run(self, *args: Any) -> list[Any]:
        with self.device.streams.computing():
            return [np.array(o.raw) for o in self.captured(*(self.put(a) for a in args))]


def affine(xp: Any, variables: Any, x: Any) -> tuple[Any, ...]:
    return xp.maximum(x * 2 + 1, 0), x.sum()


def test_the_third_call_of_a_shape_is_captured_and_replayed() -> None:
    machine = Machine(affine)
    for i in range(6):
        x = np.arange(4.0) - i
        result, total = machine.run(x)
        assert result.tolist() == np.maximum(x * 2 + 1, 0).tolist()
        assert total == x.sum()
    assert (machine.stats.plain, machine.stats.captured, machine.stats.replayed) == (2, 1, 4)
    assert machine.calls == 3  # two plain calls, one to capture


def test_a_replay_reads_and_writes_the_captured_addresses() -> None:
    machine = Machine(affine)
    for _ in range(3):
        machine.run(np.ones(4))
    (shape,) = machine.captured._shapes.values()  # type: ignore[attr-defined]
    inputs, outputs = shape.capture.inputs, shape.capture.outputs
    machine.run(np.full(4, 5.0))
    assert inputs[0].raw.tolist() == [5] * 4  # the argument was copied in
    assert outputs[0].raw.tolist() == [11] * 4
    assert shape.capture.inputs is inputs


def test_an_earlier_result_is_not_overwritten() -> None:
    machine = Machine(affine)
    with machine.device.streams.computing():
        kept = [machine.captured(machine.put(np.full(3, float(i))))[0] for i in range(6)]
    assert [k.raw.tolist() for k in kept] == [[2 * i + 1] * 3 for i in range(6)]


def test_work_of_other_threads_during_a_capture_runs_at_once() -> None:
    arrived: list[Any] = []

    def step(xp: Any, variables: Any, x: Any) -> tuple[Any, ...]:
        if machine.device.streams.capturing:
            thread = Thread(target=lambda: arrived.append(machine.put([1.0, 2.0])))
            thread.start()
            thread.join()
        return (x * 2,)

    machine = Machine(step)
    for i in range(5):
        (result,) = machine.run([float(i)])
        assert result.tolist() == [2.0 * i]
    assert machine.stats.captured == 1
    assert [a.raw.tolist() for a in arrived] == [[1.0, 2.0]]


def test_each_shape_has_its_own_graph() -> None:
    machine = Machine(affine)
    for size in (3, 4, 3, 4, 3, 4, 3, 4):
        result, _ = machine.run(np.ones(size))
        assert result.shape == (size,)
    assert machine.stats.captured == 2


def test_only_a_few_shapes_are_kept() -> None:
    machine = Machine(affine)
    for size in range(1, 9):
        for _ in range(3):
            machine.run(np.ones(size))
    assert machine.stats.captured == 8
    assert len(machine.captured._shapes) == 4  # type: ignore[attr-defined]


def test_function_that_reads_values_on_the_host_is_never_captured() -> None:
    def looks(xp: Any, variables: Any, x: Any) -> tuple[Any, ...]:
        return (x * 2,) if bool((x > 0).all()) else (x,)

    machine = Machine(looks)
    for i in range(6):
        (result,) = machine.run([1.0, i - 3])
        assert result.tolist() == ([2, 2 * (i - 3)] if i > 3 else [1, i - 3])
    assert machine.stats.captured == 0
    assert "Capture" in (machine.stats.refused or "")
    assert machine.calls == 7  # the capture attempt was one more call


def update(xp: Any, variables: Any, gradient: Any) -> tuple[Any, ...]:
    (variable,) = variables

    def change(present: Any, out: Any) -> Any:
        return xp.subtract(present, gradient, out) if out is not None else xp.subtract(present, gradient)

    variable.update(change)
    return (variable.read() * 1,)


def assign(xp: Any, variables: Any, gradient: Any) -> tuple[Any, ...]:
    (variable,) = variables
    variable.assign(variable.read() - gradient)
    return (variable.read() * 1,)


def scale(xp: Any, variables: Any, x: Any) -> tuple[Any, ...]:
    return (variables[0].read() * x,)


def test_a_variable_that_is_only_read_may_have_other_readers() -> None:
    """Constants that initialize variables share their arrays."""
    machine = Machine(scale, [10.0, 20.0])
    reader: Any = machine.variables[0].read()
    for i in range(6):
        (seen,) = machine.run([i, 1.0])
        assert seen.tolist() == [10.0 * i, 20.0]
    assert (machine.stats.captured, machine.stats.replayed) == (1, 4)
    assert reader.raw.tolist() == [10.0, 20.0]


def test_captures_become_rare_if_a_variable_moves_all_the_time() -> None:
    machine = Machine(scale, [0.0])
    for i in range(100):
        machine.variables[0].assign(machine.put([float(i)]))
        (seen,) = machine.run([2.0])
        assert seen.tolist() == [2.0 * i]
    assert machine.stats.captured < 10
    for _ in range(200):
        machine.run([2.0])
    assert machine.stats.replayed > 100


@pytest.mark.parametrize("step", [update, assign])
def test_variables_continue_across_replays(step: Any) -> None:
    machine = Machine(step, [10.0, 20.0])
    for i in range(1, 8):
        (seen,) = machine.run([1.0, 2.0])
        assert seen.tolist() == [10 - i, 20 - 2 * i]
    assert machine.stats.replayed == 5
    assert machine.variables[0].value.raw.tolist() == [3, 6]


@pytest.mark.parametrize("step", [update, assign])
def test_assignment_outside_the_strand_causes_a_new_capture(step: Any) -> None:
    machine = Machine(step, [10.0])
    for _ in range(4):
        machine.run([1.0])
    machine.variables[0].assign(machine.put([100.0]))
    for i in range(1, 6):
        (seen,) = machine.run([1.0])
        assert seen.tolist() == [100 - i]
    assert machine.stats.captured == 2


def test_value_held_by_a_caller_never_changes() -> None:
    machine = Machine(update, [10.0])
    for _ in range(4):
        machine.run([1.0])
    fetched: Any = machine.variables[0].read()
    before = fetched.raw.tolist()
    (seen,) = machine.run([1.0])
    assert seen.tolist() == [before[0] - 1]
    assert fetched.raw.tolist() == before


def test_failed_capture_leaves_variables_unchanged() -> None:
    def fails_late(xp: Any, variables: Any, gradient: Any) -> tuple[Any, ...]:
        made = assign(xp, variables, gradient)
        float(made[0].sum())
        return made

    machine = Machine(fails_late, [10.0])
    for i in range(1, 6):
        (seen,) = machine.run([1.0])
        assert seen.tolist() == [10 - i]
    assert machine.stats.refused is not None


def test_capturing_can_be_switched_off() -> None:
    device = small_lanes(FakeDriver(), capture=False)

    def function() -> tuple[Any, ...]:
        return ()

    assert device.capture(function) is function
