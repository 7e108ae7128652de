"""Random programs of branches and loops for property tests: nested, with shared predicates and dead values."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import aioflow as af


@dataclass(frozen=True)
class FlowProgram:
    """A graph with values for its placeholders and tensors to fetch."""

    feeds: dict[af.Tensor, Any]
    fetches: list[af.Tensor]


class _Scope:
    """The values that a statement may read."""

    def __init__(self, floats: list[Any], ints: list[Any], predicates: list[Any]) -> None:
        self.floats = list(floats)
        self.ints = list(ints)
        self.predicates = list(predicates)
        self.sided: list[tuple[Any, bool, Any]] = []  # (predicate, side, a value made only on that side)

    def inner(self) -> _Scope:
        return _Scope(self.floats, self.ints, self.predicates)


class _Generator:
    def __init__(self, seed: int, count: int, loops: bool) -> None:
        self.rng = random.Random(seed)
        self.budget = 40
        self.count = count
        self.loops = loops

    def statements(self, scope: _Scope, number: int, depth: int) -> None:
        for _ in range(number):
            self.budget -= 1
            if depth > 0 and self.budget > 0 and self.rng.random() < 0.45:
                kinds = [self.cond, self.cond, self.switch_case, self.case, self.again]
                self.rng.choice(kinds + [self.loop, self.loop] * self.loops)(scope, depth - 1)
            else:
                self.plain(scope)

    def float(self, scope: _Scope) -> Any:
        return self.rng.choice(scope.floats[-6:])

    def predicate(self, scope: _Scope) -> Any:
        if self.rng.random() < 0.5 or not scope.predicates:
            kinds: list[Callable[[], Any]] = [
                lambda: af.reduce_sum(self.float(scope)) > 0.1,
                lambda: self.rng.choice(scope.ints) < self.rng.randint(0, 3),
                lambda: af.equal(self.rng.choice(scope.ints) % 2, 0),
                lambda: af.constant(self.rng.random() < 0.5),
            ]
            made = self.rng.choice(kinds)()
            scope.predicates.append(made)
        return self.rng.choice(scope.predicates)

    def plain(self, scope: _Scope) -> None:
        a, b = self.float(scope), self.rng.choice(scope.floats)
        kinds: list[Callable[[], Any]] = [
            lambda: a + b,
            lambda: a * b * 0.5,
            lambda: af.tanh(a),
            lambda: af.identity(a),
            lambda: a - af.cast(self.rng.choice(scope.ints), af.float32) * 0.1,
            lambda: af.maximum(a, b),
            lambda: af.reverse(a, [0]),
            lambda: af.constant(np.full(self.count, self.rng.random(), np.float32)),
            lambda: af.fill([self.count], 0.25),
        ]
        scope.floats.append(self.rng.choice(kinds)())
        if self.rng.random() < 0.2:
            scope.ints.append(self.rng.choice(scope.ints) + 1)

    def branch(self, scope: _Scope, depth: int, outputs: int, leaks: list[Any] | None = None) -> Callable[[], Any]:
        def build() -> Any:
            inner = scope.inner()
            self.statements(inner, self.rng.randint(1, 3), depth)
            if leaks is not None:
                leaks.append(inner.floats[-1])
            return [*self.rng.choices(inner.floats[-4:], k=outputs), self.rng.choice(inner.ints)]

        return build

    def keep(self, scope: _Scope, made: list[Any]) -> None:
        scope.floats += made[:-1]
        scope.ints.append(made[-1])

    def cond(self, scope: _Scope, depth: int) -> None:
        pred, outputs = self.predicate(scope), self.rng.randint(1, 3)
        leaks: tuple[list[Any], list[Any]] = ([], [])
        sides = [self.branch(scope, depth, outputs, leak) for leak in leaks]
        self.keep(scope, af.cond(pred, sides[1], sides[0]))
        scope.sided += [(pred, bool(side), value) for side, values in enumerate(leaks) for value in values]

    def again(self, scope: _Scope, depth: int) -> None:
        """Read a value of one side on the same side of another cond with the same predicate."""
        if not scope.sided:
            self.plain(scope)
            return
        pred, side, value = self.rng.choice(scope.sided)
        other = self.float(scope)
        alive, plain = (lambda: af.tanh(value) + other), (lambda: other * 0.5)
        scope.floats.append(af.cond(pred, alive, plain) if side else af.cond(pred, plain, alive))

    def switch_case(self, scope: _Scope, depth: int) -> None:
        branches = [self.branch(scope, depth, 2) for _ in range(3)]
        self.keep(scope, af.switch_case(self.rng.choice(scope.ints), branches))

    def case(self, scope: _Scope, depth: int) -> None:
        pairs = [(self.predicate(scope), self.branch(scope, depth, 1)) for _ in range(2)]
        self.keep(scope, af.case(pairs, default=self.branch(scope, depth, 1)))

    def loop(self, scope: _Scope, depth: int) -> None:
        limit = self.rng.choice([0, 1, 2, 3, self.rng.choice(scope.ints) % 4])
        outside = scope.inner()

        def condition(i: Any, *variables: Any) -> Any:
            below = i < limit
            if self.rng.random() < 0.2:
                below = af.cond(below, lambda: af.reduce_sum(variables[0]) < 1e6, lambda: af.constant(False))
            return below

        def body(i: Any, *variables: Any) -> Any:
            inner = outside.inner()
            inner.floats += variables
            inner.ints.append(i)
            self.statements(inner, self.rng.randint(1, 4), depth)
            made = self.rng.choices([*inner.floats[-4:], *variables], k=len(variables))
            return [i + 1, *(af.tanh(m) if self.rng.random() < 0.5 else m for m in made)]

        start = [self.float(scope) for _ in range(self.rng.randint(1, 3))]
        shapes = [af.TensorShape([])] + [af.TensorShape([None])] * len(start)
        made = af.while_loop(condition, body, [0, *start], shape_invariants=shapes)
        self.keep(scope, [*made[1:], made[0]])


def random_flow_program(seed: int, loops: bool = True) -> FlowProgram:
    """Return a program over float32 vectors and int32 scalars. Every third has buffers large enough for reuse."""
    values = np.random.default_rng(seed)
    count = 6000 if seed % 3 == 0 else 3
    x = af.placeholder("float32", [count if seed % 2 else None])
    y = af.placeholder("float32", [count])
    n = af.placeholder("int32", [])
    p = af.placeholder("bool", [] if seed % 5 else None)
    feeds = {
        x: values.standard_normal(count).astype(np.float32),
        y: values.standard_normal(count).astype(np.float32),
        n: np.int32(values.integers(0, 5)),
        p: np.bool_(values.integers(0, 2)),
    }
    generator = _Generator(seed, count, loops)
    scope = _Scope([x, y], [n], [p])
    generator.statements(scope, 6, 3)
    fetches = list(dict.fromkeys([*scope.floats[-4:], scope.ints[-1]]))
    if not loops:
        fetches += [g for g in af.gradients(scope.floats[-3:], [x, y]) if g is not None]
    return FlowProgram(feeds, fetches)
