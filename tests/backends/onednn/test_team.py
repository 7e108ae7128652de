"""Tests of the team of OpenMP threads: when a computation uses it, and that it does not slow others down."""

from __future__ import annotations

import asyncio
import math
import threading
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aioflow.errors import FailedPreconditionError, NotFoundError
from aioflow_numpy.conv_shapes import windows
from aioflow_onednn import convolutions
from aioflow_onednn.codes import Algorithm
from aioflow_onednn.filters import Filters, packings
from aioflow_onednn.library import PostOps, library
from aioflow_onednn.primitives import address
from aioflow_onednn.team import Team

try:
    library()
except (NotFoundError, FailedPreconditionError) as error:
    pytest.skip(error.message, allow_module_level=True)


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class _Computation:
    """A computation that takes a given time of the clock."""

    def __init__(self, clock: _Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self.runs, self.usual, self.missed, self.most_missed = 0, math.inf, 0, 64

    def run(self, *addresses: int) -> None:
        self._clock.now += self._seconds


def _pair(clock: _Clock, alone: float, together: float) -> Any:
    return SimpleNamespace(alone=_Computation(clock, alone), together=_Computation(clock, together))


def _step(team: Team, pair: Any) -> str:
    """Compute once, and return which variant ran."""
    if team.reserve() < 2:
        return "blocks"
    try:
        chosen = pair.alone if team.is_for_one(pair.alone) else pair.together
        team.run(chosen, pair.alone)
        return "alone" if chosen is pair.alone else "together"
    finally:
        team.back()


def _team(clock: _Clock) -> Team:
    return Team(clock, size=lambda: 2)


def test_time_of_one_thread_is_measured_first() -> None:
    clock = _Clock()
    team, pair = _team(clock), _pair(clock, 1e-3, 6e-4)
    by = [_step(team, pair) for _ in range(60)]
    assert by[0] == "alone"
    assert set(by[10:]) == {"together"}


def test_time_of_one_thread_is_measured_again() -> None:
    """The first measurement of one thread was slow, since other work occupied the processors."""
    clock = _Clock()
    team, pair = _team(clock), _pair(clock, 4e-3, 2e-3)
    by = [_step(team, pair) for _ in range(640)]
    assert by[10:].count("alone") == 9
    pair.alone._seconds = 1e-3
    assert "blocks" in [_step(team, pair) for _ in range(2000)]


def test_short_computations_stay_on_one_thread() -> None:
    clock = _Clock()
    team, pair = _team(clock), _pair(clock, 1e-5, 5e-6)
    assert {_step(team, pair) for _ in range(50)} == {"alone"}


def test_single_late_computation_does_not_stop_the_team() -> None:
    clock = _Clock()
    team, quick, late = _team(clock), _pair(clock, 1e-3, 6e-4), _pair(clock, 1e-3, 4e-3)
    for _ in range(100):
        _step(team, quick)
    for _ in range(5):
        _step(team, late)  # only one of these counts as late: the others measure the time of one thread
    assert _step(team, quick) == "together"


def test_slow_team_is_suspended_for_longer_and_longer() -> None:
    clock = _Clock()
    team, late = _team(clock), _pair(clock, 1e-3, 5e-3)
    rests = []
    for _ in range(6):
        while _step(team, late) != "blocks":
            pass
        begun = clock.now
        while _step(team, late) == "blocks":
            clock.now += 1e-3
        rests.append(clock.now - begun)
    assert all(later > 1.5 * sooner for sooner, later in pairwise(rests))
    assert rests[-1] < 2.0


def test_suspensions_are_short_again_after_the_team_saved_time() -> None:
    clock = _Clock()
    team, quick, late = _team(clock), _pair(clock, 1e-3, 1e-4), _pair(clock, 1e-3, 9e-3)
    for _ in range(300):
        _step(team, late)
        clock.now += 1e-3
    clock.now += 10.0
    for _ in range(50):
        assert _step(team, quick) != "blocks"
    while _step(team, late) != "blocks":
        pass
    clock.now += 0.1
    assert _step(team, quick) == "together"


def test_only_one_computation_has_the_team() -> None:
    team = _team(_Clock())
    assert team.reserve() == 2
    with_another: list[int] = []
    thread = threading.Thread(target=lambda: with_another.append(team.reserve()))
    thread.start()
    thread.join()
    assert with_another == [1]
    team.back()
    assert team.reserve() == 2


def test_interrupted_reservation_does_not_keep_the_team() -> None:
    sizes: list[int] = []

    def size() -> int:
        if not sizes:
            sizes.append(2)
            raise KeyboardInterrupt
        return sizes[0]

    team = Team(_Clock(), size)
    with pytest.raises(KeyboardInterrupt):
        team.reserve()
    assert team.reserve() == 2


async def test_team_is_not_used_on_an_event_loop() -> None:
    team = _team(_Clock())
    assert team.reserve() == 1
    assert await asyncio.to_thread(team.reserve) == 2


@pytest.mark.parametrize("seed", range(8))
def test_thread_count_does_not_change_the_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    swish, added = PostOps(Algorithm.ELTWISE_SWISH, 1.0), PostOps(Algorithm.ELTWISE_RELU, adds=True)
    activation = (None, swish, added)[seed % 3]
    compared = 0
    for _ in range(12):
        depthwise, kernel, stride = rng.random() < 0.3, int(rng.choice([1, 1, 3, 5])), int(rng.choice([1, 2]))
        n, h, w, c, outputs = (int(each) for each in rng.integers((1, 2, 2, 1, 1), (4, 24, 24, 200, 200)))
        edge = (kernel // 2, kernel // 2)
        g = windows((n, h, w, c), (kernel, kernel), (stride, stride), (edge, edge))
        filters = Filters(c, 1, c) if depthwise else Filters(1, c, outputs)
        if not convolutions.fits(g) or convolutions.forward(g, filters, False, activation).primitive.is_by_products:
            continue
        image = rng.standard_normal((n, h, w, c), np.float32)
        weights = rng.standard_normal((kernel, kernel, filters.inputs, filters.outputs), np.float32)
        other = rng.standard_normal((g.n, g.oh, g.ow, filters.outputs), np.float32)
        results = []
        for threads in (1, 2, 3):
            prepared = convolutions.forward(g, filters, False, activation, threads)
            out = np.empty((g.n, g.oh, g.ow, filters.outputs), np.float32)
            packed = packings(weights, [(prepared, 0)])[prepared, 0]
            more = [address(other)] if activation is added else []
            prepared.run(address(image), packed.at, address(out), *more)
            results.append(out)
        np.testing.assert_array_equal(results[1:], results[:1] * 2)
        compared += 1
    assert compared > 6
