"""Control-flow programs as small trees: printed as Python, run by TensorFlow and by aioflow, and shrunk.

A program is one function of a module (`tensorflow.compat.v1` or `aioflow`), of tensors and of variables. A failing test
prints exactly the text that was run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial  # noqa: TID251  # nothing forks here
from typing import Any

import numpy as np

import aioflow as af
from aioflow.kernels.resources import ResourceManager
from aioflow.testing.evaluate import evaluate

Array = np.ndarray[Any, Any]

#: Literals that replace a statement of the same kind when a program is shrunk.
LITERALS = {
    "f64[]": "m.constant(0.25, m.float64)",
    "f64[3]": "m.constant([0.1, -0.2, 0.3], m.float64)",
    "f64[2,3]": "m.constant([[0.1, 0.2, -0.3], [0.4, -0.5, 0.6]], m.float64)",
    "f64[?,3]": "m.constant([[0.1, 0.2, -0.3]], m.float64)",
    "f32[3]": "m.constant([0.1, -0.2, 0.3], m.float32)",
    "i32[]": "m.constant(1)",
    "bool[]": "m.constant(True)",
}
#: Kinds of the arguments of a program.
INPUTS = {"x0": "f64[]", "x1": "f64[3]", "x2": "f64[2,3]", "x3": "f32[3]", "n0": "i32[]", "n1": "i32[]", "p0": "bool[]"}
FLOATS = ("x0", "x1", "x2", "x3")
VARIABLES = ("v0", "v1")
DTYPES = {"f64": "float64", "f32": "float32", "i32": "int32", "bool": "bool"}

PRELUDE = '''
def after(m, token, update):
    """Run an update of v0 when what `token` stands for is done, and read v0 then."""
    with m.control_dependencies([token]):
        done = update()
    with m.control_dependencies([done]):
        return v0.read_value()
'''


@dataclass(frozen=True)
class Value:
    """A name and its kind, such as "f64[3]"; "array" and "list" are kinds that are not tensors."""

    name: str
    kind: str


@dataclass(frozen=True)
class Block:
    """A function: its parameters, statements and results."""

    name: str
    params: tuple[str, ...]
    statements: tuple[Statement, ...]
    results: tuple[str, ...]

    def lines(self, indent: str) -> list[str]:
        inner = indent + "    "
        made = [line for statement in self.statements for line in statement.lines(inner)]
        return [
            f"{indent}def {self.name}({', '.join(self.params)}):",
            *made,
            f"{inner}return {', '.join(self.results)}",
        ]


@dataclass(frozen=True)
class Statement:
    """A statement `targets = template`; `args` replace {0}, {1} …, and `blocks` replace {f[0]}, {f[1]} …."""

    targets: tuple[Value, ...]
    template: str
    args: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()

    def lines(self, indent: str) -> list[str]:
        made = [line for block in self.blocks for line in block.lines(indent)]
        names = ", ".join(t.name for t in self.targets)
        text = self.template.format(*self.args, f=[b.name for b in self.blocks])
        return [*made, f"{indent}{names} = {text}" if names else f"{indent}{text}"]


@dataclass(frozen=True)
class Program:
    """A program: its outermost function, its features, and values for its arguments and variables."""

    seed: int
    block: Block
    features: frozenset[str]
    feeds: dict[str, Array]
    initial: dict[str, Array]

    @cached_property
    def source(self) -> str:
        return "\n".join(self.block.lines("")) + "\n"

    def build(self, module: Any) -> Built:
        """Build the program in the default graph."""
        variables = {n: module.Variable(v, use_resource=True, name=n) for n, v in self.initial.items()}
        inputs = {
            name: module.placeholder(DTYPES[kind.partition("[")[0]], self.feeds[name].shape, name=name)
            for name, kind in INPUTS.items()
        }
        names: dict[str, Any] = dict(variables)
        exec(compile(PRELUDE + self.source, f"<program {self.seed}>", "exec"), names)
        outputs = list(names["program"](module, *inputs.values()))
        parts = [module.reduce_sum(module.cast(y, module.float64)) for y in outputs if y.dtype.is_floating]
        total = module.add_n([part * (0.5 + 0.25 * i) for i, part in enumerate(parts)])
        return Built(inputs, variables, [*outputs, total])


@dataclass(frozen=True)
class Built:
    """A program in a graph. The last output is a scalar that depends on all floating outputs."""

    inputs: dict[str, Any]
    variables: dict[str, Any]
    outputs: list[Any]

    def feeds(self, values: dict[str, Array]) -> dict[Any, Array]:
        return {self.inputs[name]: value for name, value in values.items()}

    def sources(self) -> list[Any]:
        """Return the sources of gradients: the float inputs and the variables."""
        return [*(self.inputs[name] for name in FLOATS), *self.variables.values()]

    def gradients(self, module: Any) -> list[Any]:
        """Return the dense gradient of the scalar by each of `sources`; None if it does not depend on the source."""
        found = module.gradients(self.outputs[-1], self.sources())
        return [None if g is None else module.convert_to_tensor(g) for g in found]


Fetches = Callable[[Any, Built], list[Any]]


def outputs_of(module: Any, built: Built) -> list[Any]:
    return built.outputs


def gradients_of(module: Any, built: Built) -> list[Any]:
    """Return the gradients, and the outputs, so that all updates of variables run."""
    return [*built.gradients(module), *built.outputs]


def run_tensorflow(tf: Any, program: Program, fetches: Fetches = outputs_of) -> list[Any]:
    """Return the fetched values and the variables after the step. A fetch of None is None."""
    plain = tf.ConfigProto(intra_op_parallelism_threads=1)
    plain.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default(), tf.Session(config=plain) as session:
        built = program.build(tf)
        wanted = fetches(tf, built)
        session.run(tf.global_variables_initializer())
        values = iter(session.run([w for w in wanted if w is not None], built.feeds(program.feeds)))
        found = [None if w is None else next(values) for w in wanted]
        return [*found, *session.run(list(built.variables.values()))]


def run_primitive(program: Program, fetches: Fetches = outputs_of) -> list[Any]:
    """Return the same results by aioflow, with loops as tagged dataflow."""
    resources = ResourceManager()
    with af.Graph().as_default():
        built = program.build(af)
        wanted = fetches(af, built)
        evaluate([], targets=[af.global_variables_initializer()], resources=resources)
        fetched = [w for w in wanted if w is not None]
        values = iter(evaluate(fetched, built.feeds(program.feeds), resources=resources))
        found = [None if w is None else next(values) for w in wanted]
        return [*found, *evaluate([v.read_value() for v in built.variables.values()], resources=resources)]


def run_session(program: Program, fetches: Fetches = outputs_of) -> list[Any]:
    """Return the same results by a session, which runs loops as native code if possible."""

    with af.Graph().as_default():
        built = program.build(af)
        wanted = fetches(af, built)
        initializer = af.global_variables_initializer()

        async def run() -> list[Any]:
            async with af.Session() as session:
                await session.run(initializer)
                fetched = [w for w in wanted if w is not None]
                values = iter(await session.run(fetched, built.feeds(program.feeds)))
                found = [None if w is None else next(values) for w in wanted]
                return [*found, *(await session.run(list(built.variables.values())))]

        return asyncio.run(run())


# -- shrinking ---------------------------------------------------------------------------------------------------------


def shrink(program: Program, fails: Callable[[Program], bool], tries: int = 200) -> Program:
    """Return a smaller program that still fails: drop statements or replace them by literals while that is possible."""
    smaller: Program | None = program
    while smaller is not None:
        program, smaller = smaller, None
        for block in _smaller(program.block):
            candidate = replace(program, block=_pruned(block))
            tries -= 1
            if tries < 0:
                return program
            if fails(candidate):
                smaller = candidate
                break
    return program


def _smaller(block: Block) -> Iterator[Block]:
    """Yield versions of the block with one reduction each, the largest reductions first."""
    if block.name == "program":
        for i in range(len(block.results) - 1):
            yield replace(block, results=(block.results[i],))
    statements = block.statements
    for i in reversed(range(len(statements))):
        before, statement, behind = statements[:i], statements[i], statements[i + 1 :]
        used = set(block.results).union(*map(_names, behind))
        if not used & {t.name for t in statement.targets}:
            yield replace(block, statements=before + behind)
        elif statement.template not in LITERALS.values() and all(t.kind in LITERALS for t in statement.targets):
            literals = tuple(Statement((t,), LITERALS[t.kind]) for t in statement.targets)
            yield replace(block, statements=before + literals + behind)
        for k, inner in enumerate(statement.blocks):
            for less in _smaller(inner):
                blocks = (*statement.blocks[:k], less, *statement.blocks[k + 1 :])
                yield replace(block, statements=(*before, replace(statement, blocks=blocks), *behind))


def _pruned(block: Block) -> Block:
    """Return the block without statements whose results are not used."""
    used, kept = set(block.results), list[Statement]()
    for statement in reversed(block.statements):
        if not statement.targets or used & {t.name for t in statement.targets}:
            kept.append(replace(statement, blocks=tuple(_pruned(b) for b in statement.blocks)))
            used |= _names(kept[-1])
    return replace(block, statements=tuple(reversed(kept)))


def _names(statement: Statement) -> set[str]:
    """Return all names that the statement reads, at any depth."""
    inside = [name for b in statement.blocks for s in b.statements for name in _names(s)]
    return {*statement.args, *inside, *(name for b in statement.blocks for name in b.results)}


# -- comparing ---------------------------------------------------------------------------------------------------------


def difference(program: Program, theirs: list[Any], run: Callable[..., list[Any]], fetches: Fetches) -> str:
    """Return a description of the first difference from TensorFlow's results; empty if there is no difference."""
    try:
        ours = run(program, fetches)
    except af.errors.AioflowError as error:
        return f"{type(error).__name__}: {error}"
    single = "float32" in program.features
    rtol, atol = (1e-4, 1e-5) if single else (1e-9, 1e-11)
    for i, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if (mine is None) != (other is None):
            return f"result {i}: {mine!r} against {other!r}"
        if mine is None:
            continue
        a, b = np.asarray(mine), np.asarray(other)
        same = a.dtype == b.dtype and a.shape == b.shape
        if not same or not np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=atol):
            return f"result {i}: {a!r} against {b!r}"
    return ""


def check(tf: Any, program: Program, runs: list[Callable[..., list[Any]]], fetches: Fetches = outputs_of) -> None:
    """Fail with a shrunk program if one of `runs` differs from TensorFlow."""
    theirs = run_tensorflow(tf, program, fetches)
    for run in runs:
        found = difference(program, theirs, run, fetches)
        if found:
            small = shrink(program, partial(_alike, tf, run, fetches, found), tries=60)
            raise AssertionError(f"seed {program.seed}, {run.__name__}: {found}\n{small.source}feeds: {small.feeds}")


def _alike(tf: Any, run: Callable[..., list[Any]], fetches: Fetches, found: str, program: Program) -> bool:
    """Return True if a program fails with a difference like `found`."""
    try:
        theirs = run_tensorflow(tf, program, fetches)
    except (tf.errors.OpError, ValueError, TypeError, IndexError, NameError):
        return False  # no longer a valid program
    return difference(program, theirs, run, fetches).partition(" ")[0] == found.partition(" ")[0]
