"""Random control-flow programs by seed, for the comparison with TensorFlow.

Values stay small and the functions are smooth almost everywhere, so that values and gradients can be compared closely.
Results of branches and loops are *owed*: the results of the surrounding function depend on them, so that nothing is
pruned. Programs update one variable, v0. Each access to v0 waits for the previous one through a *token*, the value that
was read last. The other variable, v1, is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.parity.programs import INPUTS, LITERALS, Block, Program, Statement, Value

F0, F1, F2, S1, I, B = "f64[]", "f64[3]", "f64[2,3]", "f32[3]", "i32[]", "bool[]"  # noqa: E741
GROWING = "f64[?,3]"
SHAPES = {F0: "[]", F1: "[3]", F2: "[2, 3]", S1: "[3]", I: "[]", B: "[]", GROWING: "[None, 3]"}
DEEPEST = 3

#: Templates for the next value of a loop variable, from its last value and another one.
STEPS = ["m.tanh(0.8 * {0} + {1})", "m.sin({0} * 0.9) + 0.2 * {1}", "m.tanh({1} + {0} * {0})"]
#: A template that makes a value of some kind, and the kinds of its arguments.
Rule = tuple[str, tuple[str, ...]]
SMOOTH = ["m.tanh({0} * {1})", "m.sin({0} + {1})", "0.5 * ({0} - {1})", "m.sigmoid({0}) * {1}", "0.6 * {0} + 0.4 * {1}"]
RULES: dict[str, list[Rule]] = {
    kind: [*((text, (kind, kind)) for text in SMOOTH), ("m.tanh({0}) * 0.9", (kind,)), ("m.sin(2.0 * {0})", (kind,))]
    for kind in (F0, F1, F2, S1)
}
RULES[F0] += [
    ("m.reduce_sum({0}) * 0.3", (F1,)),
    ("m.reduce_mean({0})", (F2,)),
    ("m.reduce_max({0})", (F1,)),
    ("{0}[1]", (F1,)),
    ("m.gather({0}, {1} % 3)", (F1, I)),
    ("m.cast({0}, m.float64) * 0.1", (I,)),
    ("m.where({0}, {1}, {2})", (B, F0, F0)),
    ("m.maximum({0}, {1} + 0.01)", (F0, F0)),
    ("m.tanh({0} * m.reduce_sum(v1))", (F0,)),
]
RULES[F1] += [
    ("m.tanh({0} * {1})", (F1, F0)),
    ("m.tanh({0}[0] + {0}[1] * 0.5)", (F2,)),
    ("m.stack([{0}, {1}, {2}])", (F0, F0, F0)),
    ("m.reduce_sum({0}, 0) * 0.4", (F2,)),
    ("m.concat([{0}[1:], {1}[:1]], 0)", (F1, F1)),
    ("m.gather({0}, {1} % 2)", (F2, I)),
    ("m.cast({0}, m.float64)", (S1,)),
    ("m.reverse({0}, [0])", (F1,)),
    ("m.sin({0} + v1)", (F1,)),
]
RULES[F2] += [
    ("m.stack([{0}, {1}])", (F1, F1)),
    ("m.tanh(m.matmul(m.matmul({0}, {1}, transpose_b=True), {2}) * 0.2)", (F2, F2, F2)),
    ("m.reshape(m.transpose({0}), [2, 3])", (F2,)),
    ("m.tanh({0} * {1})", (F2, F1)),
]
RULES[S1] += [("m.cast({0}, m.float32)", (F1,))]
RULES[I] = [("({0} * 3 + {1}) % 7", (I, I)), ("m.cast({0}, m.int32) + 1", (B,)), ("m.minimum({0} + 1, 4)", (I,))]
RULES[B] = [
    ("{0} > {1}", (F0, F0)),
    ("m.logical_not({0})", (B,)),
    ("m.logical_xor({0}, {1})", (B, B)),
    ("m.equal({0} % 2, 0)", (I,)),
    ("m.reduce_any({0} > 0.3)", (F1,)),
]

#: Constructs that a program must contain, from the outermost to the innermost; selected by the seed.
PLANS: list[tuple[str, ...]] = [
    ("cond", "cond"), ("cond", "loop"), ("loop", "cond"), ("loop", "loop"), ("loop", "loop", "loop"),
    ("cond", "loop", "cond"), ("loop", "cond", "loop"), ("case", "loop"), ("switch_case",), ("loop", "switch_case"),
    ("loop", "case"), ("dead",), ("loop", "dead"), ("changing shape",), ("loop", "changing shape"), ("array write",),
    ("loop", "array write"), ("array read",), ("cond", "array write"), ("map_fn",), ("scan",), ("foldl",), ("foldr",),
    ("map_fn", "loop"), ("loop", "scan"), ("map_fn", "cond"), ("assigning",), ("loop", "assigning"),
    ("cond", "assigning"), ("assigning", "cond"), ("early exit",), ("zero trips",), ("maximum_iterations",),
    ("loop", "maximum_iterations"), ("float32 state",), ("bool state",), ("array read", "cond"),
]  # fmt: skip
LOOPS = (
    "loop", "changing shape", "array write", "array read", "assigning", "early exit", "zero trips",
    "maximum_iterations", "float32 state", "bool state",
)  # fmt: skip
ARRAYS = {"array read", "array write"}


@dataclass
class Scope:
    """A function under construction."""

    values: list[Value]
    inside: tuple[str, ...] = ()
    token: Value | None = None
    statements: list[Statement] = field(default_factory=list)
    owed: list[Value] = field(default_factory=list)
    outer: frozenset[Value] = frozenset()


@dataclass
class Carried:
    """A loop variable: its parameter in the functions, its start value, and the update in the body."""

    param: Value
    start: str
    update: Callable[[Scope], str]


class Generator:
    """Generator of one program."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([3, seed])
        self.seed = seed
        self.count = 0
        self.left = 5  # remaining branches and loops besides those of the plan
        self.plan: list[str] = []
        self.features: set[str] = set()
        self.plans = [PLANS[(seed * 2 + k) % len(PLANS)] for k in (0, 1)]
        # Programs with float32 are compared with larger tolerances, so only some programs use it.
        self.single = seed % 4 == 0 or any("float32 state" in plan for plan in self.plans)
        self.features.update(["float32"] if self.single else [])

    # -- helpers ---------------------------------------------------------------------------------------------------

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def one_of(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def new(self, kind: str, prefix: str = "t") -> Value:
        self.count += 1
        return Value(f"{prefix}{self.count}", kind)

    def add(self, scope: Scope, kind: str, template: str, args: Sequence[str] = ()) -> Value:
        target = self.new(kind)
        scope.statements.append(Statement((target,), template, tuple(args)))
        scope.values.append(target)
        return target

    def pick(self, scope: Scope, kind: str, but: Sequence[Value] = ()) -> Value:
        """Return a value of `kind`, preferably a recent one, and none of `but` if there is another."""
        alike = [v for v in scope.values if v.kind == kind]
        found = [v for v in alike if v not in but] or alike
        if not found:
            return self.add(scope, kind, LITERALS[kind])
        chosen: Value = self.one_of(found[-3:] if self.chance(0.6) else found)
        if chosen in scope.outer and chosen.name not in INPUTS:
            self.features.add("captured")
        return chosen

    def let(self, scope: Scope, kind: str) -> Value:
        template, kinds = self.one_of([rule for rule in RULES[kind] if self.single or S1 not in rule[1]])
        if "v1" in template and "loop" in scope.inside:
            self.features.add("variable read in loop")
        args: list[Value] = []
        for k in kinds:
            args.append(self.pick(scope, k, args))
        return self.add(scope, kind, template, [v.name for v in args])

    def child(self, scope: Scope, what: str, params: Sequence[Value] = ()) -> Scope:
        values = [*scope.values, *params]
        return Scope(values, (*scope.inside, what), scope.token, outer=frozenset(scope.values))

    def block(self, scope: Scope, name: str, params: Sequence[Value], results: Sequence[str]) -> Block:
        self.count += 1
        names = tuple(p.name for p in params)
        return Block(f"{name}{self.count}", names, tuple(scope.statements), tuple(results))

    def settle(self, scope: Scope, result: Value) -> Value:
        """Return `result`, extended so that it depends on all owed values."""
        for value in scope.owed:
            if value.name != result.name:
                text = "m.tanh({0} + 0.3 * m.reduce_sum(m.cast({1}, m.float64)))"
                result = self.add(scope, result.kind, text, [result.name, value.name])
        scope.owed.clear()
        return result

    # -- functions -------------------------------------------------------------------------------------------------

    def fill(self, scope: Scope, size: int) -> None:
        """Add statements, beginning with the next constructs of the plan."""
        for _ in range(size):
            if self.plan and len(scope.inside) < DEEPEST:
                self.emit(scope, self.plan.pop(0))
            elif self.left > 0 and len(scope.inside) < DEEPEST and self.chance(0.15):
                self.left -= 1
                self.emit(scope, self.one_of(self.one_of(PLANS)))
            else:
                self.let(scope, self.one_of([F0, F0, F1, F1, F2, I, B, S1 if self.single else F2]))

    def emit(self, scope: Scope, what: str) -> None:
        if what == "assigning" and scope.token is None:
            what = "loop"
        around = [w for w in scope.inside if w in ("cond", "loop")]
        if around and (self.family(what) in ("cond", "loop")):
            self.features.add(f"{self.family(what)} in {around[-1]}")
        self.features.update({f"depth {len(scope.inside) + 1}", what})
        if what in LOOPS:
            self.loop(scope, what)
        elif what in ("map_fn", "scan", "foldl", "foldr"):
            self.mapping(scope, what)
        elif what == "dead":
            self.dead(scope)
        else:
            self.branches(scope, what)

    @staticmethod
    def family(what: str) -> str:
        return "loop" if what in LOOPS else "cond" if what in ("cond", "case", "switch_case", "dead") else what

    def branches(self, scope: Scope, form: str) -> None:
        kinds = [self.one_of([F0, F1, F2])]
        if self.chance(0.4):
            kinds.append(self.one_of([F1, I, B, S1 if self.single else F2]))
        assigning = scope.token is not None and self.chance(0.5)
        picks = {"cond": [B], "case": [B, B], "switch_case": [I]}[form]
        args = [self.let(scope, kind).name if self.chance(0.5) else self.pick(scope, kind).name for kind in picks]
        made = [self.branch(scope, kinds, assigning) for _ in range(2 if form == "cond" else 3)]
        template = {
            "cond": "m.cond({0}, {f[0]}, {f[1]})",
            "case": "m.case([({0}, {f[0]}), ({1}, {f[1]})], default={f[2]})",
            "switch_case": "m.switch_case({0}, [{f[0]}, {f[1]}, {f[2]}])",
        }[form]
        targets = [self.new(kind) for kind in kinds] + ([self.new(F0, "token")] if assigning else [])
        scope.statements.append(Statement(tuple(targets), template, tuple(args), tuple(made)))
        self.take(scope, targets, assigning)

    def take(self, scope: Scope, targets: Sequence[Value], assigning: bool) -> None:
        """Make the results of a branch or loop available as values, and mark them as owed."""
        scope.values += targets
        scope.owed += targets
        if assigning:
            scope.token = targets[-1]

    def branch(self, scope: Scope, kinds: Sequence[str], assigning: bool) -> Block:
        inner = self.child(scope, "cond")
        if not assigning:
            inner.token = None
        elif inner.token is not None:
            # Nodes inside a branch may only wait for nodes of the same branch.
            inner.token = self.add(inner, F0, "m.identity({0})", [inner.token.name])
            if self.chance(0.7):
                self.assign(inner)
        self.fill(inner, int(self.rng.integers(1, 3)))
        rest = [self.let(inner, kind) for kind in kinds[1:]]
        first = self.settle(inner, self.let(inner, kinds[0]))
        token = [inner.token.name] if assigning and inner.token is not None else []
        return self.block(inner, "branch", (), [first.name, *(v.name for v in rest), *token])

    def assign(self, scope: Scope) -> None:
        """Add an update of v0 that waits for the token."""
        assert scope.token is not None
        update = self.one_of(["v0.assign_add({1} * 0.3)", "v0.assign(m.tanh({0}) * {1})", "v0.assign_sub({1} * 0.2)"])
        args = [scope.token.name, self.pick(scope, F0).name]
        scope.token = self.add(scope, F0, "after(m, {0}, lambda: " + update + ")", args)
        self.features.add(f"variable assigned in {scope.inside[-1] if scope.inside else 'order'}")

    def dead(self, scope: Scope) -> None:
        """Add two conds with one predicate, of which the second reads a value from inside a branch of the first."""
        predicate = self.pick(scope, B).name
        kind = self.one_of([F0, F1])
        leaked = self.new("list", "leaked")
        scope.statements.append(Statement((leaked,), "[]"))
        side = self.one_of([0, 1])
        for reading in (False, True):
            made = [self.leaking(scope, kind, leaked if k == side else None, reading) for k in (0, 1)]
            target = self.new(kind)
            scope.statements.append(Statement((target,), "m.cond({0}, {f[0]}, {f[1]})", (predicate,), tuple(made)))
            self.take(scope, [target], False)

    def leaking(self, scope: Scope, kind: str, leaked: Value | None, reading: bool) -> Block:
        inner = self.child(scope, "cond")
        inner.token = None
        if leaked is not None and reading:
            inner.owed.append(self.add(inner, kind, "m.identity({0}[0])", [leaked.name]))
        value = self.let(inner, kind)
        if leaked is not None and not reading:
            inner.statements.append(Statement((), "{0}.append({1})", (leaked.name, value.name)))
        return self.block(inner, "branch", (), [self.settle(inner, self.let(inner, kind)).name])

    # -- loops -----------------------------------------------------------------------------------------------------

    def loop(self, scope: Scope, want: str) -> None:
        wanted = {want} | {w for w in LOOPS if w not in ("zero trips", *ARRAYS) and self.chance(0.12)}
        if scope.token is None:
            wanted.discard("assigning")
        if not self.single:
            wanted.discard("float32 state")
        if wanted & ARRAYS:
            # `shape_invariants` would need an entry for the array, too.
            wanted.discard("changing shape")
        self.features |= wanted
        limit = self.limit(scope, wanted)
        counter = self.new(I, "i")
        carried = [Carried(counter, "0", lambda body: f"{counter.name} + 1")]
        carried += [self.state(scope, self.one_of([F0, F1, F2])) for _ in range(1 + self.chance(0.3))]
        for feature, kind in (("float32 state", S1), ("bool state", B)):
            carried += [self.state(scope, kind)] if feature in wanted else []
        carried += [self.state(scope, I)] if self.chance(0.2) else []
        carried += [self.grown(scope)] if "changing shape" in wanted else []
        written = self.written(scope, limit, counter) if "array write" in wanted else None
        carried += [written] if written is not None else []
        if "assigning" in wanted and scope.token is not None:
            token = self.new(F0, "token")
            carried.append(Carried(token, scope.token.name, lambda body: body.token.name if body.token else ""))
        rows = self.rows(scope) if "array read" in wanted else None
        body = self.body(scope, carried, wanted, rows)
        test = self.test(scope, carried, limit, wanted)
        self.close_loop(scope, carried, wanted, (test, body))

    def limit(self, scope: Scope, wanted: set[str]) -> str:
        """Return the number of iterations, or the name of a value that holds it."""
        counters = [v.name for v in scope.values if v.name.startswith("i")]
        if "zero trips" in wanted:
            return str(self.one_of(["n1", "0"]))
        if counters and self.chance(0.4):
            self.features.add("trips by the outer loop")
            return counters[-1]
        return str(self.one_of(["n0", "n0", "2", "3", "4"]))

    def state(self, scope: Scope, kind: str) -> Carried:
        param = self.new(kind, "s")
        start = self.pick(scope, kind).name

        def update(body: Scope) -> str:
            if kind in (F0, F1, F2):
                other = self.let(body, kind) if self.chance(0.7) else self.pick(body, kind, [param])
                text = self.one_of(STEPS)
                return self.settle(body, self.add(body, kind, text, [param.name, other.name])).name
            if kind == B:
                return self.add(body, B, "m.logical_xor({0}, {1})", [param.name, self.let(body, B).name]).name
            if kind == I:
                return self.add(body, I, "({0} * 2 + {1}) % 5", [param.name, self.pick(body, I).name]).name
            return self.add(body, S1, "m.tanh({0} + 0.5 * {1})", [param.name, self.let(body, S1).name]).name

        return Carried(param, start, update)

    def grown(self, scope: Scope) -> Carried:
        param = self.new(GROWING, "s")
        first = self.add(scope, GROWING, "m.reshape({0}, [1, 3])", [self.pick(scope, F1).name])

        def update(body: Scope) -> str:
            row = self.let(body, F1)
            text = self.one_of([
                "m.concat([{0}, m.reshape({1}, [1, 3])], 0)", "m.concat([{0}[:1] * {1}, {0} * 0.5], 0)",
                "m.concat([m.tanh({0} + {1}), {0}[-1:]], 0)",
            ])  # fmt: skip
            return self.add(body, GROWING, text, [param.name, row.name]).name

        return Carried(param, first.name, update)

    def written(self, scope: Scope, limit: str, counter: Value) -> Carried:
        """Return a loop variable for an array to which the loop writes one element per iteration."""
        dynamic = self.chance(0.5)
        size = "0, dynamic_size=True" if dynamic else limit
        self.features |= {"dynamic array"} if dynamic else set()
        start = self.new("array")
        text = f"m.TensorArray(m.float64, {size}, element_shape=[3])"
        scope.statements.append(Statement((start,), text, () if dynamic else (limit,)))
        param = self.new("array", "a")

        def update(body: Scope) -> str:
            target = self.new("array")
            args = (param.name, counter.name, self.let(body, F1).name)
            body.statements.append(Statement((target,), "{0}.write({1}, {2})", args))
            return target.name

        return Carried(param, start.name, update)

    def rows(self, scope: Scope) -> str:
        """Return the name of an array that the loop reads."""
        fill = self.one_of(["unstack({0})", "scatter([1, 0], {0})"])
        self.features.add("array " + fill.partition("(")[0])
        target = self.new("array")
        text = "m.TensorArray(m.float64, 2, clear_after_read=False, element_shape=[3])." + fill
        scope.statements.append(Statement((target,), text, (self.pick(scope, F2).name,)))
        return target.name

    def body(self, scope: Scope, carried: Sequence[Carried], wanted: set[str], rows: str | None) -> Block:
        params = [c.param for c in carried]
        inner = self.child(scope, "loop", [p for p in params if p.kind in LITERALS and p.kind != GROWING])
        inner.token = params[-1] if "assigning" in wanted else None
        if rows is not None:
            inner.owed.append(self.add(inner, F1, "{0}.read({1} % 2)", [rows, params[0].name]))
        self.fill(inner, int(self.rng.integers(1, 4)))
        if "assigning" in wanted:
            self.assign(inner)
        results = [c.update(inner) for c in carried]
        return self.block(inner, "body", params, results)

    def test(self, scope: Scope, carried: Sequence[Carried], limit: str, wanted: set[str]) -> Block:
        params = [c.param for c in carried]
        inner = self.child(scope, "test")
        inner.token = None
        result = self.add(inner, B, "{0} < {1}", [params[0].name, limit])
        if "early exit" in wanted:
            state = next(p for p in params if p.kind in (F0, F1, F2))
            text = f"m.logical_and({{0}}, m.reduce_sum({{1}}) < {self.one_of(['0.5', '1.5', '{2}'])})"
            result = self.add(inner, B, text, [result.name, state.name, self.pick(scope, F0).name])
        if "bool state" in wanted and self.chance(0.5):
            flag = next(p for p in params if p.kind == B)
            result = self.add(inner, B, "m.logical_and({0}, {1})", [result.name, flag.name])
        return self.block(inner, "test", params, [result.name])

    def close_loop(self, scope: Scope, carried: Sequence[Carried], wanted: set[str], blocks: tuple[Block, ...]) -> None:
        starts = tuple(c.start for c in carried)
        text = "m.while_loop({f[0]}, {f[1]}, (" + ", ".join(f"{{{k}}}" for k in range(len(starts))) + ")"
        if "changing shape" in wanted:
            shapes = ", ".join(f"m.TensorShape({SHAPES[c.param.kind]})" for c in carried)
            text += f", shape_invariants=({shapes})"
        if "maximum_iterations" in wanted:
            text += f", maximum_iterations={self.one_of(['2', 'n0', '5'])}"
        parallel = self.one_of([1, 10, None])
        text += f", parallel_iterations={parallel}" if parallel else ""
        self.features.add(f"parallel {parallel or 10}")
        targets = tuple(self.new(c.param.kind) for c in carried)
        scope.statements.append(Statement(targets, text + ")", starts, blocks))
        tensors = [t for t in targets if t.kind in LITERALS and t.kind != GROWING]
        self.features.update(f"{t.kind.partition('[')[0]} state" for t in tensors[1:])
        self.take(scope, tensors, "assigning" in wanted)
        for t in targets:
            self.unpack(scope, t)

    def unpack(self, scope: Scope, made: Value) -> None:
        """Add owed values that depend on a value without a static shape, or on an array."""
        if made.kind == GROWING:
            scope.owed.append(self.add(scope, F1, "m.tanh(m.reduce_sum({0}, 0) * 0.3)", [made.name]))
        if made.kind == "array":
            way = self.one_of(["stack()", "gather(m.range({0}.size()))", "concat()"])
            self.features.add("array " + way.partition("(")[0])
            axis, kind = ("", F0) if way == "concat()" else (", 0", F1)
            text = f"m.tanh(m.reduce_sum({{0}}.{way}{axis}) * 0.3)"
            scope.owed.append(self.add(scope, kind, text, [made.name]))

    # -- functions over elements --------------------------------------------------------------------------------------

    def mapping(self, scope: Scope, what: str) -> None:
        elements, element = self.one_of([(F2, F1), (F1, F0)])
        row, state = self.new(element, "row"), self.new(element, "state")
        params = [row] if what == "map_fn" else [state, row]
        inner = self.child(scope, "loop", params)
        inner.token = None
        inner.owed += params
        self.fill(inner, int(self.rng.integers(0, 3)))
        result = self.settle(inner, self.let(inner, element))
        args = [self.pick(scope, elements).name]
        text = f"m.{what}({{f[0]}}, {{0}}"
        if what != "map_fn" and self.chance(0.6):
            args.append(self.pick(scope, element).name)
            text += ", initializer={1}"
        text += ", reverse=True" if what == "scan" and self.chance(0.4) else ""
        text += f", parallel_iterations={self.one_of([1, 10])})"
        target = self.new(elements if what in ("map_fn", "scan") else element)
        function = self.block(inner, "element", params, [result.name])
        scope.statements.append(Statement((target,), text, tuple(args), (function,)))
        self.take(scope, [target], False)

    # -- program -----------------------------------------------------------------------------------------------------

    def program(self) -> Program:
        scope = Scope([Value(name, kind) for name, kind in INPUTS.items()])
        scope.token = self.add(scope, F0, "v0.read_value()")
        scope.owed.append(scope.token)
        for plan in self.plans:
            self.plan = list(plan)
            self.fill(scope, 2)
        self.plan = []
        self.fill(scope, 2)
        outputs = list(dict.fromkeys([*scope.owed, scope.token]))
        outputs.append(self.let(scope, F1))
        block = Block("program", ("m", *INPUTS), tuple(scope.statements), tuple(v.name for v in outputs))
        draw = self.rng.standard_normal
        feeds: dict[str, Any] = {"x0": draw(), "x1": draw(3), "x2": draw((2, 3)), "x3": draw(3).astype(np.float32)}
        feeds |= {"n0": np.int32(self.rng.integers(2, 5)), "n1": np.int32(0), "p0": np.bool_(self.chance(0.5))}
        initial = {"v0": np.asarray(draw() * 0.5), "v1": np.asarray(draw(3) * 0.5)}
        arrays = {name: np.asarray(value) for name, value in feeds.items()}
        return Program(self.seed, block, frozenset(self.features), arrays, initial)


def generate(seed: int) -> Program:
    """Return the program of a seed."""
    return Generator(seed).program()
