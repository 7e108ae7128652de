"""Random programs under random device requests: the same bits and effects in every configuration of the session.

The first session defines the expected result: it has one device, no optimizations and the reference executor. The
others have four devices and differ in placement, executor, optimizations and inlining.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.compiler.optimize.passes import ORDER_MEMORY, PASSES, RECOMPUTE, SCHEDULE_RECEIVES
from aioflow.errors import InvalidArgumentError
from tests.runtime.flow_programs import random_flow_program
from tests.runtime.programs import random_program
from tests.support.random_examples import examples

FOUR: Final = {"CPU": 4}
SWITCHES: Final = [*(p.name for p in PASSES if p.exact), RECOMPUTE, SCHEDULE_RECEIVES, ORDER_MEMORY]
REQUESTS: Final = ["/cpu:0", "/cpu:1", "/cpu:2", "/cpu:3", "/device:CPU:*", "/device:CPU:3", "/job:localhost/cpu:1"]
WIDTH: Final = 4
TIME_LIMIT: Final = 60.0  # seconds: far more than any of these steps takes, so a step that hangs fails

Bits = list[tuple[Any, ...]]


@dataclass
class Constrained:
    """A graph with the steps to run in order; `effects` counts the calls of its Python functions."""

    steps: list[tuple[Any, dict[af.Tensor, Any]]]
    effects: Counter[str] = field(default_factory=Counter)


def requests(rng: random.Random, density: float) -> Callable[[Any], str | None]:
    """Return a device function that requests a random device for a share of the nodes."""

    def request(op: Any) -> str | None:
        return rng.choice(REQUESTS) if rng.random() < density else None

    return request


def stateless(seed: int, flow: bool) -> Constrained:
    """Return a random stateless program of the executor tests, with its nodes spread over devices."""
    rng = random.Random(seed)
    with af.device(requests(rng, rng.choice([0.05, 0.4, 1.0]))):
        program = random_flow_program(seed, loops=rng.random() < 0.7) if flow else random_program(seed)
    return Constrained([(list(program.fetches), program.feeds)] * 2)


class _Stateful:
    """A generator of random programs with state, under device scopes.

    The programs have variables, queues, seeded random ops, functions and Python functions. Each access to state waits
    for the previous one, so that exactly one result is right.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.program = Constrained([])
        self.x = af.placeholder("float32", [WIDTH])
        self.pool: list[Any] = [self.x, af.constant([0.5, -1.0, 2.0, 0.25])]
        self.last: list[Any] = []  # control inputs of the next effect
        self.variables = [self.scoped(partial(self.variable, i)) for i in range(3)]
        self.queue = self.scoped(lambda: af.FIFOQueue(10, ["float32"], shapes=[[WIDTH]]))

    def variable(self, number: int) -> Any:
        start = np.linspace(number, number + 1, WIDTH, dtype=np.float32)
        return af.Variable(start, name=f"variable_{number}")

    def scoped(self, make: Callable[[], Any]) -> Any:
        """Call `make` under zero, one or two device requests."""
        kind = self.rng.random()
        if kind < 0.3:
            return make()
        if kind < 0.45:
            with af.device(requests(self.rng, 0.3)):
                return make()
        if kind < 0.55:
            with af.device(self.rng.choice(REQUESTS)), af.device(None):
                return make()
        with af.device(self.rng.choice(REQUESTS)):
            return make()

    def anchored(self, make: Callable[[], Any]) -> Any:
        """Call `make` colocated with another node or under random device requests."""
        if not self.pool[2:] or self.rng.random() < 0.75:
            return self.scoped(make)
        with af.colocate_with(self.rng.choice(self.pool[2:])):
            return make()

    def effect(self, make: Callable[[], Any]) -> None:
        """Add a node that has effects or reads state, behind all previous ones."""
        with af.control_dependencies(self.last):
            made = self.anchored(make)
        self.last = [made]
        if isinstance(made, af.Tensor):
            self.pool.append(made)

    def any(self) -> Any:
        return self.rng.choice(self.pool[-6:])

    def plain(self) -> None:
        a, b = self.any(), self.rng.choice(self.pool)
        kinds: list[Callable[[], Any]] = [
            lambda: a + b,
            lambda: a * b * 0.5,
            lambda: af.tanh(a),
            lambda: af.reverse(a, [0]),
            lambda: af.concat([a[:2], b[2:]], 0),
            lambda: af.cond(a[0] < b[1], lambda: self.scoped(lambda: a - b), lambda: af.minimum(a, 1.0)),
            lambda: af.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, af.tanh(v + b)), [0, a])[1],
            lambda: self.function()(a, b),
        ]
        self.pool.append(self.anchored(self.rng.choice(kinds)))

    def function(self) -> Any:
        @af.function
        def mixed(a: Any, b: Any) -> Any:
            inner = self.scoped(lambda: af.maximum(a, b))
            return inner * 0.5 + a

        return mixed

    def called(self, x: Any) -> Any:
        def count(value: Any) -> Any:
            self.program.effects["py_func"] += 1
            return value * np.float32(2)

        made = af.py_func(count, [x], af.float32)
        made.set_shape([WIDTH])
        return made

    def awaited(self, x: Any) -> Any:
        async def count(value: Any) -> Any:
            self.program.effects["py_coroutine"] += 1
            await asyncio.sleep(0)
            return value + np.float32(1)

        return af.py_coroutine(count, [x], af.float32, shapes=[WIDTH])

    def looped(self, variable: Any, x: Any) -> Any:
        def body(i: Any, v: Any) -> Any:
            added = self.scoped(lambda: variable.assign_add(v * 0.25, read_value=True))
            return i + 1, af.tanh(added)

        return af.while_loop(lambda i, _: i < 3, body, [0, x], parallel_iterations=1)[1]

    def stateful(self) -> None:
        variable, a, seed = self.rng.choice(self.variables), self.any(), self.rng.randrange(100)
        kinds: list[Callable[[], Any]] = [
            lambda: variable.assign_add(a * 0.25, read_value=True),
            lambda: variable.assign(af.tanh(a), read_value=True),
            lambda: variable.read_value(),
            lambda: variable.assign_sub(variable.read_value() * 0.5).op,
            lambda: self.queue.enqueue(a),
            lambda: af.random_uniform([WIDTH], seed=seed),
            lambda: af.random_normal([WIDTH], seed=seed),
            lambda: self.called(a),
            lambda: self.awaited(a),
            lambda: self.looped(variable, a),
        ]
        kind = self.rng.choice(kinds)
        self.effect(kind)
        if kind is kinds[4]:
            self.effect(self.queue.dequeue)

    def train(self) -> Any:
        loss = self.scoped(lambda: af.reduce_sum(af.square(af.tanh(self.variables[0] * self.variables[1] + self.x))))
        optimizer = self.rng.choice(
            [
                af.train.GradientDescentOptimizer(0.1),
                af.train.MomentumOptimizer(0.1, 0.9),
                af.train.AdamOptimizer(0.01),
            ]
        )
        together = self.rng.random() < 0.5
        with af.control_dependencies(self.last):
            gradients = optimizer.compute_gradients(
                loss, var_list=self.variables[:2], colocate_gradients_with_ops=together
            )
        return self.scoped(lambda: optimizer.apply_gradients(gradients))

    def build(self) -> Constrained:
        rng = self.rng
        for _ in range(rng.randint(4, 16)):
            (self.stateful if rng.random() < 0.5 else self.plain)()
        train = self.train() if rng.random() < 0.6 else None
        feeds = {self.x: np.array([0.1, -0.2, 0.3, rng.random()], np.float32)}
        steps = self.program.steps
        steps.append((af.global_variables_initializer(), {}))
        for number in range(5):
            fetches: list[Any] = rng.sample(self.pool, min(3, len(self.pool)))
            fetches += self.last if number % 2 else []
            steps.append((fetches, feeds))
            if train is not None and number % 2:
                steps.append((train, feeds))
        steps.append(([variable.value() for variable in self.variables], {}))
        return self.program


def constrained(seed: int) -> Constrained:
    """Return the program of a seed."""
    af.set_random_seed(seed)
    if seed % 3 == 0:
        return _Stateful(seed).build()
    return stateless(seed // 3, flow=seed % 3 == 1)


def bits(value: Any) -> Bits:
    """Return dtype, shape and bytes of each value: NaN is equal to itself, and 0.0 differs from -0.0."""
    arrays = [np.asarray(v) for v in (value if isinstance(value, list) else [value]) if v is not None]
    return [(a.dtype, a.shape, a.tobytes()) for a in arrays]


async def outcome(seed: int, config: af.SessionConfig) -> tuple[list[Bits], Counter[str]] | None:
    """Run the program of a seed and return the values of each step, and the effects.

    Returns None if the requests cannot be met without soft placement.
    """
    with af.Graph().as_default():
        program = constrained(seed)
        found: list[Bits] = []
        async with af.Session(config=config) as session, asyncio.timeout(TIME_LIMIT):
            for fetches, feeds in program.steps:
                try:
                    found.append(bits(await session.run(fetches, feeds)))
                except InvalidArgumentError as error:
                    if config.allow_soft_placement or "ask for different devices" not in str(error):
                        raise
                    return None
        return found, program.effects


CHOICES: Final = st.fixed_dictionaries(
    {
        "placement": st.sampled_from(["first", "greedy", "heft", "auto", "random", "round_robin"]),
        "executor": st.sampled_from(["strands", "strands", "reference"]),
        "optimizations": st.sampled_from([True, True, False, *({name: False} for name in SWITCHES)]),
        "replace_after": st.sampled_from([0, 3]),
        "inline_budget": st.sampled_from([0.0, 2e-4, 1.0]),
        "allow_soft_placement": st.sampled_from([True, True, False]),
    }
)
PLAIN: Final = af.SessionConfig(
    device_count={"CPU": 1}, allow_soft_placement=True, optimizations=False, executor="reference"
)


async def compare(seed: int, choices: dict[str, Any]) -> None:
    """Compare the program of a seed in the plain configuration with that of another one."""
    whole = await outcome(seed, PLAIN)
    parts = await outcome(seed, af.SessionConfig(device_count=FOUR, **choices))
    assert parts is None or parts == whole


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 1_000_000), choices=CHOICES)
def test_random_requests_change_only_the_devices(seed: int, choices: dict[str, Any]) -> None:
    asyncio.run(compare(seed, choices))
