"""Definitions, their text, and plans that are damaged before they are read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec, Part
from aioflow.config import SessionConfig
from aioflow.errors import OpError, UnavailableError
from aioflow.graph import dtypes
from aioflow.graph.graph import Operation
from aioflow.graph.graphdef import GraphDef, NodeDef, TensorData
from aioflow.graph.opdef import OpDef
from aioflow.net.outbox import ValueMessage
from aioflow.net.plan_codec import decode_part, encode_part
from aioflow.net.task_worker import TaskWorker, WorkerSession
from aioflow.ops.apply import infer_attrs, output_specs
from aioflow.runtime.step import Step
from aioflow.runtime.worker import Worker
from aioflow.session.fetches import feed_converter
from tests.sweep.hostile import values

__all__ = ["PREFIX", "imported", "run_damaged", "run_planted"]

PREFIX = "import/"


# ── definitions ──────────────────────────────────────────────────────────────────────────────────────────────────────


def imported(op: str, inputs: Sequence[str], given: Mapping[str, Any], rng: Random) -> Operation:
    """Import a definition that holds the call and the default graph's nodes, and return the call's node.

    In about half of the calls there is one flaw: an attribute missing or of another kind, an input missing or too many,
    or the text altered.

    Args:
        op: Type of the node.
        inputs: Names of the input tensors.
        given: Attributes of the node.
        rng: Random generator that determines the flaw.
    """
    names, attrs = list(inputs), {key: _plain(value) for key, value in given.items()}
    way = rng.choice(("none", "none", "none", "missing", "another", "fewer", "more", "text"))
    if attrs and way == "missing":
        del attrs[rng.choice(list(attrs))]
    elif attrs and way == "another":
        attrs[rng.choice(list(attrs))] = _plain(rng.choice(values.JUNK))
    elif names and way == "fewer":
        names.remove(rng.choice(names))
    elif way == "more":
        names.append(rng.choice([*names, "call:0", "nothing:0", "^call"]))
    definition = af.get_default_graph().as_graph_def()
    definition = replace(definition, nodes=(*definition.nodes, NodeDef("call", op, tuple(names), "", attrs)))
    if way == "text":
        definition = GraphDef.from_json(_damaged_text(definition.to_json(), rng))
    elif rng.random() < 0.2:
        definition = GraphDef.from_bytes(definition.to_bytes())
    (made,) = af.import_graph_def(definition, return_elements=["call"])
    operation: Operation = made
    return operation


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        try:
            return TensorData.of(value)
        except (OpError, ValueError, TypeError):
            return 0
    return tuple(_plain(item) for item in value) if isinstance(value, list | tuple) else value


def _damaged_text(text: str, rng: Random) -> str:
    """Return the JSON text with one value replaced by another."""
    pieces = list(re.finditer(r'(?<=: )("[^"]*"|-?\d+|null|\[\]|true|false)', text))
    piece = rng.choice(pieces)
    other = rng.choice(("null", "[]", "{}", "-1", "1.5", '""', '"a"', "[1]", '{"$dtype": 1}', "9" * 25, "true"))
    return text[: piece.start()] + other + text[piece.end() :]


# ── plans ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def run_damaged(
    session: af.Session, wanted: Sequence[Any], feeds: Mapping[str, Any], rng: Random, wait: float
) -> None:
    """Run the step's plan on a worker, with one node damaged."""
    task, device, graph = _only(session, wanted, feeds)
    hit = rng.choice(list(graph.nodes))
    nodes = {name: _damaged(node, rng) if name == hit else node for name, node in graph.nodes.items()}
    await _run_sent(session, Part(task, {device: replace(graph, nodes=nodes)}), feeds, rng, wait)


async def run_planted(
    session: af.Session, op_def: OpDef, inputs: Mapping[str, Any], attrs: Mapping[str, Any],
    feeds: Mapping[str, Any], rng: Random, wait: float,
) -> None:  # fmt: skip
    """Run a node that only the compiler's passes make on a worker. Half of these nodes are damaged."""
    resolved = infer_attrs(op_def, inputs, attrs)
    specs = tuple(OutputSpec(*spec) for spec in output_specs(op_def, inputs, resolved))
    read = [t for value in inputs.values() for t in (value if isinstance(value, list) else [value])]
    task, device, graph = _only(session, read or [af.constant(0)], feeds)
    given = {n.attrs["index"]: n.inputs[0] for n in graph.nodes.values() if n.op == "_Retval"}
    node = Node("planted", op_def.name, tuple(given[i] for i in range(len(read))), (), resolved, specs, device)
    nodes = {name: node for name, node in graph.nodes.items() if node.op != "_Retval"}
    nodes["planted"] = node if rng.random() < 0.5 else _damaged(node, rng)
    for i, spec in enumerate(specs[:1]):
        nodes["fetched"] = Node(
            "fetched", "_Retval", (Edge("planted", i),), (), {"T": spec.dtype, "index": i}, (), device
        )
    planted = replace(graph, nodes=nodes, fetches=len(specs[:1]), targets=("planted",))
    await _run_sent(session, Part(task, {device: planted}), feeds, rng, wait)


def _only(session: af.Session, wanted: Sequence[Any], feeds: Mapping[str, Any]) -> tuple[str, str, ClientGraph]:
    """Return the task, the device and the graph of a step that has one subgraph."""
    (part,) = session.plan(wanted, list(feeds)).parts.values()
    ((device, graph),) = part.subgraphs.items()
    return part.task, device, graph


async def _run_sent(session: af.Session, part: Part, feeds: Mapping[str, Any], rng: Random, wait: float) -> None:
    received = decode_part(*encode_part(part))
    fed = [feed_converter(session.graph.get_tensor_by_name(name))(value) for name, value in feeds.items()]
    worker = TaskWorker(Worker(), _nobody).open_session()
    try:
        await _run_part(worker, received, session.config, fed, rng, wait)
    finally:
        await worker.close()


def _nobody(message: ValueMessage) -> None:
    message.fail(UnavailableError(f"there is no {message.task}"))


async def _run_part(
    worker: WorkerSession, part: Part, config: SessionConfig, fed: list[Any], rng: Random, wait: float
) -> None:
    handle = await worker.register(part, 1, config)
    if rng.random() < 0.1:
        fed = fed[1:] if fed and rng.random() < 0.5 else [*fed, np.zeros(2)]
    step = Step(id=rng.choice((0, 1)))
    try:
        async with asyncio.timeout(wait):
            await worker.run(handle, fed, step)
    except TimeoutError:
        pass
    finally:
        step.finish()


def _damaged(node: Node, rng: Random) -> Node:
    attrs = dict(node.attrs)
    what = rng.random()
    if node.outputs and what < 0.15:
        return replace(node, outputs=tuple(OutputSpec(spec.dtype, values.shape(rng)) for spec in node.outputs))
    if attrs and what < 0.5:
        del attrs[rng.choice(list(attrs))]
    elif attrs and what < 0.8:
        attrs[rng.choice(list(attrs))] = rng.choice((0, -1, 2**62, "a", None, (), (1,), 1.5, True, dtypes.int8))
    elif node.inputs and what < 0.9:
        return replace(node, inputs=node.inputs[1:])
    elif node.outputs:
        return replace(node, outputs=node.outputs[1:])
    return replace(node, attrs=attrs)
