"""Shortcuts, which are single calls for runs of nodes: the nodes in them, and calls that decline."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.graph.opdef import OPS, define_op
from aioflow.graph.traits import elementwise
from aioflow.kernels.joinable import Joinable, JoinedMember, given
from aioflow.kernels.registry import Binding, binder
from aioflow.ops.apply import make

AS_WRITTEN = af.SessionConfig(optimizations=False)


class _Joined:
    """A joiner that calls the nodes one by one and records the size of each run and the calls."""

    def __init__(self) -> None:
        self.members: list[int] = []
        self.begin()

    def begin(self) -> None:
        """Reset the records."""
        self.members.clear()
        self.gives_up, self.calls = False, 0

    def __call__(self, members: Sequence[JoinedMember], inputs: int, outputs: Sequence[int]) -> Callable[..., Any]:
        self.members.append(len(members))

        def call(*outside: Any) -> Any:
            assert len(outside) == inputs
            self.calls += 1
            if self.gives_up:
                return None
            values = list(outside)
            for member in members:
                values.append(member.call(*(given(item, values) for item in member.arguments)))
            made = [values[inputs + number] for number in outputs]
            return made if len(made) > 1 else made[0]

        return call


JOINED = _Joined()
ALONE: list[float] = []  # the first element of each input of a node that ran on its own


def _define(op: str, is_small: bool) -> None:
    if op in OPS:
        return
    define_op(op, "x: T", "y: T", ["T: type"], traits=elementwise(), shape=lambda ctx: ctx.dims("x"))

    @binder(op, fresh=True)
    def _joinable(binding: Binding) -> Any:
        def body(x: Any) -> Any:
            ALONE.append(float(x[0]))
            return x + 1

        return Joinable(body, "part", JOINED, is_small)


_define("TestJoinable", is_small=False)
_define("TestSmall", is_small=True)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    JOINED.begin()
    ALONE.clear()
    with af.Graph().as_default():
        yield


def joinable(x: Any) -> Any:
    return make("TestJoinable", x)


def small(x: Any) -> Any:
    return make("TestSmall", x)


def vector() -> Any:
    return af.placeholder(af.float32, [3])


FED = np.array([1.0, 2.0, 3.0], np.float32)


async def run(fetches: Any, feeds: Any, **options: Any) -> Any:
    async with af.Session(config=AS_WRITTEN) as session:
        return await session.run(fetches, feeds, **options)


async def test_run_of_nodes_is_one_call() -> None:
    x, y = vector(), vector()
    made = joinable(af.tanh(joinable(x)) * 2.0 + joinable(y))
    found = await run(made, {x: FED, y: FED})
    np.testing.assert_allclose(found, np.tanh(FED + 1) * 2 + FED + 2, rtol=1e-6)
    assert JOINED.calls == 1
    assert JOINED.members == [6]


async def test_nodes_run_if_the_shortcut_declines() -> None:
    x = vector()
    made = joinable(joinable(x)) * 3.0
    JOINED.gives_up = True
    np.testing.assert_array_equal(await run(made, {x: FED}), (FED + 2) * 3)
    assert JOINED.calls == 1
    assert ALONE == [1.0, 2.0]


async def test_constants_and_sequences_may_be_arguments() -> None:
    x, y = vector(), vector()
    made = joinable(af.concat([joinable(x), af.constant(FED), y], 0))
    np.testing.assert_array_equal(await run(made, {x: FED, y: FED}), np.concatenate([FED + 1, FED, FED]) + 1)
    assert JOINED.calls == 1


async def test_value_with_another_reader_ends_the_run() -> None:
    x = vector()
    first = joinable(joinable(x))
    second = joinable(joinable(first))
    found = await run([first, second], {x: FED})
    np.testing.assert_array_equal(found[0], FED + 2)
    np.testing.assert_array_equal(found[1], FED + 4)
    assert JOINED.members == [2, 2]


async def test_node_with_an_effect_is_in_no_run() -> None:
    x = vector()
    variable = af.Variable(np.zeros(3, np.float32))
    between = variable.assign(joinable(joinable(x)))
    made = joinable(joinable(between))
    async with af.Session(config=AS_WRITTEN) as session:
        await session.run(variable.initializer)
        np.testing.assert_array_equal(await session.run(made, {x: FED}), FED + 4)
        np.testing.assert_array_equal(await session.run(variable), FED + 2)
    assert JOINED.members == [2, 2]


async def test_node_that_may_fail_is_in_no_run() -> None:
    x = vector()
    made = joinable(joinable(af.check_numerics(joinable(joinable(x)), "here")))
    np.testing.assert_array_equal(await run(made, {x: FED}), FED + 4)
    assert JOINED.members == [2, 2]


@pytest.mark.parametrize("seed", range(20))
async def test_shortcuts_do_not_change_values_of_random_graphs(seed: int) -> None:
    """Values are read by near and far nodes, and some are fetched."""
    chance = random.Random(seed)
    x = vector()
    values = [x]
    for _ in range(40):
        one, other = chance.choices(values[-chance.randint(1, 6) :], k=2)
        values.append(joinable(one) if chance.random() < 0.6 else (one + other) * 0.5)
    fetches = [values[-1], *chance.sample(values[1:], chance.randint(0, 2))]
    found = await run(fetches, {x: FED})
    calls = JOINED.calls
    async with af.Session(config=af.SessionConfig(executor="reference")) as plain:
        for value, wanted in zip(found, await plain.run(fetches, {x: FED}), strict=True):
            np.testing.assert_array_equal(value, wanted)
    assert calls == len(JOINED.members)


@pytest.mark.parametrize("taken", [True, False])
async def test_branches_are_in_no_run(taken: bool) -> None:
    x, p = vector(), af.placeholder("bool", [])
    made = joinable(joinable(af.cond(p, lambda: joinable(joinable(x)), lambda: x)))
    np.testing.assert_array_equal(await run(made, {x: FED, p: taken}), FED + (4 if taken else 2))
    assert JOINED.members == [2]


async def test_loops_are_in_no_run() -> None:
    x = vector()
    _, looped = af.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, joinable(joinable(v))), [af.constant(0), x])
    np.testing.assert_array_equal(await run(joinable(joinable(looped)), {x: FED}), FED + 8)
    assert JOINED.members == [2]


async def test_traced_step_shows_every_node() -> None:
    x = vector()
    made = joinable(joinable(x))
    found = af.RunMetadata()
    options = af.RunOptions(trace_level=af.RunOptions.FULL_TRACE)
    np.testing.assert_array_equal(await run(made, {x: FED}, options=options, run_metadata=found), FED + 2)
    assert [each.op for device in found.step_stats for each in device.nodes].count("TestJoinable") == 2
    assert JOINED.calls == 0


async def test_only_the_first_output_of_a_node_in_a_run_may_be_read() -> None:
    x = vector()
    values, indices = af.nn.top_k(joinable(x), k=2)
    np.testing.assert_array_equal(await run(joinable(values), {x: FED}), [5, 4])
    assert JOINED.members == [3]
    found = await run([joinable(values), indices], {x: FED})
    np.testing.assert_array_equal(found[0], [5, 4])
    assert JOINED.members == [3]


async def test_long_strand_has_several_runs() -> None:
    x = vector()
    y, kept = x, []
    for _ in range(5):
        for _ in range(80):
            y = joinable(y)
        kept.append(y)
    found = await run(kept, {x: FED})
    for number, value in enumerate(found, 1):
        np.testing.assert_array_equal(value, FED + 80 * number)
    assert JOINED.members == [80] * 5
    assert JOINED.calls == 5


async def test_run_of_small_nodes_has_several_outputs() -> None:
    x, y = vector(), vector()
    first = small(x)
    second = small(y)
    third = small(second)
    found = await run([third, af.tanh(first), second], {x: FED, y: FED * 2})
    np.testing.assert_array_equal(found[0], FED * 2 + 2)
    np.testing.assert_allclose(found[1], np.tanh(FED + 1), rtol=1e-6)
    np.testing.assert_array_equal(found[2], FED * 2 + 1)
    assert JOINED.members == [3]


async def test_small_nodes_run_if_the_shortcut_declines() -> None:
    x = vector()
    first = small(x)
    JOINED.gives_up = True
    found = await run([first, small(first)], {x: FED})
    np.testing.assert_array_equal(found, [FED + 1, FED + 2])
    assert JOINED.calls == 1
    assert ALONE == [1.0, 2.0]


async def test_other_nodes_are_in_no_run_of_small_nodes() -> None:
    x = vector()
    np.testing.assert_allclose(await run(small(small(af.tanh(small(x)))), {x: FED}), np.tanh(FED + 1) + 2, rtol=1e-6)
    assert JOINED.members == [1, 2]


async def test_small_nodes_in_a_run_of_other_joinable_nodes_are_computed_by_that_run() -> None:
    x = vector()
    made = joinable(small(small(joinable(x))))
    np.testing.assert_array_equal(await run(small(made), {x: FED}), FED + 5)
    assert JOINED.members == [4, 1]
