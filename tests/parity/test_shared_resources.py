"""Two nodes that share a resource by name: the properties that must be equal.

TensorFlow does not compare the dtypes of accumulators, nor the kinds of resources. aioflow rejects a mismatch, since
the next user of the resource would get a value that contradicts its graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import aioflow

Maker = Callable[[Any], Any]


def fifo(capacity: int = 10, types: Any = ("float32",), shapes: Any = None, **options: Any) -> Maker:
    return lambda m: m.FIFOQueue(capacity, list(types), shapes, shared_name="q", **options).size()


def padding(capacity: int = 10, types: Any = ("float32",), shapes: Any = ([None],)) -> Maker:
    return lambda m: m.PaddingFIFOQueue(capacity, list(types), list(shapes), shared_name="q").size()


def priority(capacity: int = 10, types: Any = ("float32",), shapes: Any = ([2],)) -> Maker:
    return lambda m: m.PriorityQueue(capacity, list(types), list(shapes), shared_name="q").size()


def shuffle(
    capacity: int = 10,
    least: int = 2,
    types: Any = ("float32",),
    shapes: Any = None,
    seed: Any = None,
    graph: Any = None,
) -> Maker:
    def make(m: Any) -> Any:
        m.set_random_seed(graph)
        return m.RandomShuffleQueue(capacity, least, list(types), shapes, seed=seed, shared_name="q").size()

    return make


def accumulator(shape: Any = (2,)) -> Maker:
    return lambda m: m.ConditionalAccumulator("float32", shape=shape, shared_name="q").num_accumulated()


def reader(**options: Any) -> Maker:
    def make(m: Any) -> Any:
        handle = m.raw_ops.TextLineReaderV2(shared_name="q", **options)
        return m.raw_ops.ReaderNumRecordsProducedV2(reader_handle=handle)

    return make


PAIRS: dict[str, tuple[Maker, Maker]] = {
    "fifo, the same": (fifo(), fifo()),
    "fifo, capacity": (fifo(), fifo(11)),
    "fifo, no limit said in two ways": (fifo(-1), fifo(-2)),
    "fifo, dtypes": (fifo(), fifo(types=("int32",))),
    "fifo, number of components": (fifo(), fifo(types=("float32", "float32"))),
    "fifo, shapes": (fifo(shapes=[[2]]), fifo(shapes=[[3]])),
    "fifo, shapes and none": (fifo(shapes=[[2]]), fifo()),
    "fifo, none and shapes": (fifo(), fifo(shapes=[[2]])),
    "fifo, names": (fifo(names=["a"]), fifo(names=["b"])),
    "fifo and shuffle": (fifo(), shuffle()),
    "fifo and padding": (fifo(shapes=[[2]]), padding(shapes=([2],))),
    "padding, the same": (padding(), padding()),
    "padding, a known and an open size": (padding(shapes=([2],)), padding(shapes=([None],))),
    "padding, other sizes": (padding(shapes=([2],)), padding(shapes=([3],))),
    "padding, other ranks": (padding(shapes=([2],)), padding(shapes=([None, None],))),
    "padding, capacity": (padding(), padding(3)),
    "priority, the same": (priority(), priority()),
    "priority, capacity": (priority(), priority(3)),
    "priority, dtypes": (priority(), priority(types=("int32",))),
    "priority, shapes": (priority(), priority(shapes=([3],))),
    "shuffle, the same": (shuffle(), shuffle()),
    "shuffle, min_after_dequeue": (shuffle(), shuffle(least=3)),
    "shuffle, capacity": (shuffle(), shuffle(11)),
    "shuffle, dtypes": (shuffle(), shuffle(types=("int32",))),
    "shuffle, shapes": (shuffle(shapes=[[2]]), shuffle(shapes=[[3]])),
    "shuffle, seeds": (shuffle(seed=1), shuffle(seed=2)),
    "shuffle, one seed": (shuffle(seed=1), shuffle(seed=1)),
    "shuffle, a seed and none": (shuffle(seed=1), shuffle()),
    "shuffle, none and a seed": (shuffle(), shuffle(seed=1)),
    "shuffle, seeds of the graph": (shuffle(seed=1, graph=5), shuffle(seed=1, graph=6)),
    "shuffle, seeds of the graph alone": (shuffle(graph=5), shuffle(graph=6)),
    "shuffle, one seed of the graph": (shuffle(graph=5), shuffle(graph=5)),
    "shuffle, one seed of the graph and a seed": (shuffle(graph=5), shuffle(graph=5, seed=1)),
    "accumulator, the same": (accumulator(), accumulator()),
    "reader, the same": (reader(), reader()),
    "reader, lines to skip": (reader(), reader(skip_header_lines=2)),
}


def _outcome(m: Any, pair: tuple[Maker, Maker], containers: tuple[str, str]) -> str:
    with m.Graph().as_default():
        nodes = []
        for make, container in zip(pair, containers, strict=True):
            with m.container(container):
                nodes.append(make(m))
        with m.Session() as session:
            run = getattr(session, "run_sync", session.run)
            run(nodes[0])
            try:
                run(nodes[1])
            except m.errors.InvalidArgumentError:
                return "refused"
            return "shared"


@pytest.mark.parametrize("containers", [("", ""), ("x", "x"), ("x", "y")], ids="/".join)
@pytest.mark.parametrize("name", PAIRS)
def test_nodes_that_share_a_name(tf: Any, name: str, containers: tuple[str, str]) -> None:
    assert _outcome(aioflow, PAIRS[name], containers) == _outcome(tf, PAIRS[name], containers)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("graph", [None, 0, 5])
@pytest.mark.parametrize("name", ["q", "einé", None])
def test_seeds_of_shuffling_queues(tf: Any, name: str | None, graph: int | None, seed: int | None) -> None:
    def seeds(m: Any) -> list[Any]:
        with m.Graph().as_default():
            m.set_random_seed(graph)
            made = [m.RandomShuffleQueue(9, 2, ["float32"], seed=seed, shared_name=name) for _ in range(2)]
            return [(each.queue_ref.op.get_attr("seed"), each.queue_ref.op.get_attr("seed2")) for each in made]

    assert seeds(aioflow) == seeds(tf)
