"""The memory order: it never needs more memory by an independent count, and never changes results."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.compiler.optimize.fuse_elementwise import fuse_elementwise
from aioflow.compiler.optimize.order_memory import order_memory, peak_bytes
from aioflow.compiler.verify import verify
from tests.compiler.optimize.fused_runs import never, pruned, run, same_bits
from tests.runtime.programs import random_program
from tests.support.random_examples import examples


def simulated(graph: ClientGraph, order: Iterable[str]) -> int:
    """Return the peak of live bytes, for graphs whose nodes each make one new array.

    Sets of the remaining readers give an independent count.
    """
    waiting = {e: {n.name for n in graph.nodes.values() if e in n.inputs} for e in edges(graph)}
    alive: set[Edge] = set()
    most = 0
    for name in order:
        node = graph.nodes[name]
        alive |= {Edge(name, port) for port in range(len(node.outputs)) if node.op not in ("_Arg", "Const")}
        most = max(most, sum(bytes_of(graph, edge) for edge in alive))
        for edge in node.inputs:
            waiting[edge].discard(name)
        alive = {edge for edge in alive if waiting[edge] or fetched(graph, edge)}
    return most


def edges(graph: ClientGraph) -> list[Edge]:
    return [Edge(n.name, port) for n in graph.nodes.values() for port in range(len(n.outputs))]


def fetched(graph: ClientGraph, edge: Edge) -> bool:
    return any(node.op == "_Retval" and edge in node.inputs for node in graph.nodes.values())


def bytes_of(graph: ClientGraph, edge: Edge) -> int:
    spec = graph.spec(edge)
    return int(np.prod([1 if size is None else size for size in spec.dims or (0,)])) * spec.dtype.size


def test_large_intermediate_is_consumed_before_the_next() -> None:
    x = af.placeholder("float32", [1000])
    spread = [af.reduce_sum(af.tile(af.reshape(x + float(i), [1000, 1]), [1, 100]), 0) for i in range(4)]
    before = pruned([af.add_n(spread)], [x])
    # all large intermediates first, as a user may write them
    order = [n for n in before.nodes if before.nodes[n].op not in ("Sum", "AddN", "_Retval")]
    order += [n for n in before.nodes if n not in order]
    worst = ClientGraph({name: before.nodes[name] for name in order}, before.feeds, before.fetches)
    verify(worst)
    after = verify(order_memory(worst, never))
    large = [node.op for node in after.nodes.values() if node.op in ("Tile", "Sum")]
    assert large == ["Tile", "Sum"] * 4
    assert simulated(after, after.nodes) < 0.4 * simulated(worst, worst.nodes)
    assert peak_bytes(worst, 1) == simulated(worst, worst.nodes)


def test_elementwise_chain_reuses_its_operands_memory() -> None:
    x = af.placeholder("float32", [1000])
    spread = af.tile(x, [100])
    graph = fuse_elementwise(pruned([af.tanh(spread * 2.0 + 1.0)], [x]), never)
    assert "_ElementwiseChain" in {node.op for node in graph.nodes.values()}
    assert peak_bytes(graph, 1) == 100_000 * 4


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(4, 50), gradients=st.booleans())
def test_random_programs_keep_their_values_and_never_need_more(seed: int, size: int, gradients: bool) -> None:
    with af.Graph().as_default():
        program = random_program(seed, size=size)
        fetches = list(program.fetches)
        if gradients:
            fetches += [g for g in af.gradients(fetches[0], list(program.feeds)) if isinstance(g, af.Tensor)]
        before = pruned(fetches, list(program.feeds))
        after = verify(order_memory(before, never))
        assert dict(after.nodes) == dict(before.nodes)
        for batch in (1, 32, 1024):
            assert peak_bytes(after, batch) <= peak_bytes(before, batch)
        for expected, value in zip(run(before, program.feeds), run(after, program.feeds), strict=True):
            assert same_bits(expected, value)
        assert list(order_memory(before, never).nodes) == list(after.nodes)  # deterministic


@settings(max_examples=examples(80), deadline=None)
@given(data=st.data())
def test_small_graphs_against_all_orders(data: st.DataObject) -> None:
    """Sums over axes never write over an operand, as the count assumes. All orders are tried to find the best one."""
    with af.Graph().as_default():
        x = af.placeholder("float32", [4, 4, 4])
        pool: list[af.Tensor] = [x]
        for _ in range(data.draw(st.integers(2, 5))):
            source = data.draw(st.sampled_from(pool))
            grow = source.dims is not None and len(source.dims) < 4 and data.draw(st.booleans())
            pool.append(
                af.stack([source] * 8) if grow else af.reduce_sum(source, 0) if source.dims else af.stack([source])
            )
        before = pruned([pool[-1], data.draw(st.sampled_from(pool))], [x])
        after = order_memory(before, never)
        working = [n for n in before.nodes.values() if n.op not in ("_Arg", "Const", "_Retval")]
        best = min(simulated(before, order) for order in orders([n.name for n in working], before))
        given = simulated(before, before.nodes)
        assert simulated(after, after.nodes) <= given
        assert simulated(after, after.nodes) <= 1.5 * best


def orders(names: list[str], graph: ClientGraph) -> Iterable[tuple[str, ...]]:
    for order in itertools.permutations(names):
        at = {name: i for i, name in enumerate(order)}
        if all(at.get(s, -1) < at[name] for name in names for s in graph.nodes[name].predecessors()):
            yield order


def test_training_step_needs_less_memory(graph: af.Graph) -> None:
    x = y = af.placeholder("float32", [256, 512])
    weights = [af.Variable(np.eye(512, dtype=np.float32), name=f"w{i}") for i in range(6)]
    for weight in weights:
        y = af.tanh(af.matmul(y, weight))
    step = af.train.GradientDescentOptimizer(0.1).minimize(af.reduce_mean(af.square(y)))
    before = pruned([], [x], [step])
    after = verify(order_memory(before, never))
    assert peak_bytes(after, 1) < 0.7 * peak_bytes(before, 1)


def test_effects_on_one_variable_keep_their_order() -> None:
    x = af.placeholder("float32", [1000, 1])
    one, other = af.Variable(0.0), af.Variable(0.0)
    sums = [
        af.reduce_sum(af.tile(x + float(i), [1, 100 + i])) for i in range(4)
    ]  # the first write needs the most memory
    writes = [v.assign(s).op for v, s in zip((one, one, one, other), reversed(sums), strict=True)]
    before = pruned([], [x], writes)
    large = [n for n in before.nodes if before.nodes[n].op == "Tile"]
    late = [*large[::-1], *(s.op.name for s in sums), *(w.name for w in writes)]
    # All large operands first, that of the first write last.
    names = [n for n in before.nodes if n not in late] + late
    worst = verify(replace(before, nodes={name: before.nodes[name] for name in names}))
    after = verify(order_memory(worst, never))
    assert list(after.nodes) != names
    ordered = [w.name for w in writes[:3]]
    assert [name for name in after.nodes if name in ordered] == ordered


def test_node_that_reads_one_variable_twice(graph: af.Graph) -> None:
    """The node must not wait for itself; its kernel reports the error."""
    variable = af.Variable([1.0, 2.0])
    update = af.raw_ops.ResourceApplyMomentum(
        var=variable.handle, accum=variable.handle, lr=0.1, grad=[1.0, 1.0], momentum=0.9
    )
    with af.Session() as session:
        session.run_sync(variable.initializer)
        with pytest.raises(af.errors.InvalidArgumentError, match="two inputs"):
            session.run_sync(update)


@pytest.mark.parametrize("loop", [True, False])
def test_branches_and_loops_are_not_reordered(loop: bool) -> None:
    x = af.placeholder("float32", [1000])
    choose = af.reduce_sum(x) > 0
    if loop:
        y = af.while_loop(lambda y: af.reduce_sum(y) < 10, lambda y: y * 2, [x])
    else:
        y = af.cond(choose, lambda: x * 2, lambda: af.tanh(x))
    before = pruned([y], [x])
    assert order_memory(before, never) is before
