"""Plans as messages: parts survive the round trip, and any other input is a typed error in bounded memory."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec, Part
from aioflow.config import SessionConfig
from aioflow.errors import (
    DataLossError,
    DTypeError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    ResourceExhaustedError,
    SourceLine,
    UnimplementedError,
)
from aioflow.graph.graphdef import FunctionRef
from aioflow.net.decoder import Decoder
from aioflow.net.framing import FrameKind, WireMessage, encode
from aioflow.net.limits import Limits
from aioflow.net.plan_codec import decode_part, encode_part
from aioflow.runtime.step import Step
from aioflow.runtime.worker import Worker
from tests.runtime.flow_programs import random_flow_program
from tests.runtime.programs import random_program
from tests.runtime.split import split_plan
from tests.support.random_examples import examples


def over_the_wire(part: Part) -> Part:
    """Return the part after encoding, framing and decoding."""
    header, tensors = encode_part(part)
    encoded = encode(WireMessage(FrameKind.REQUEST, 1, header, tensors))
    decoder = Decoder()
    found: list[WireMessage] = []
    data = encoded.head + b"".join(bytes(b) for frame in encoded.chunks() for b in frame)
    while data:
        count = min(len(data), decoder.buffer().nbytes)
        decoder.buffer()[:count] = data[:count]
        found += decoder.received(count)
        data = data[count:]
    (message,) = found
    return decode_part(message.header, message.tensors)


def plain(value: Any) -> Any:
    """Return an attribute in a form that compares with ==, including types."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        content = array.tolist() if array.dtype == np.object_ else array.tobytes()
        return (type(value), array.dtype, array.shape, content)
    if isinstance(value, tuple | list):
        return (type(value), [plain(item) for item in value])
    if isinstance(value, ClientGraph):
        nodes = [(replace(n, attrs={}), {k: plain(v) for k, v in n.attrs.items()}) for n in value.nodes.values()]
        return (nodes, value.feeds, value.fetches, value.targets)
    return (type(value), value)


def require_same(first: Part, second: Part) -> None:
    assert first.task == second.task
    assert list(first.subgraphs) == list(second.subgraphs)
    for ours, theirs in zip(first.subgraphs.values(), second.subgraphs.values(), strict=True):
        assert (ours.feeds, ours.fetches, ours.targets) == (theirs.feeds, theirs.fetches, theirs.targets)
        assert list(ours.nodes) == list(theirs.nodes)
        for a, b in zip(ours.nodes.values(), theirs.nodes.values(), strict=True):
            assert replace(a, attrs={}) == replace(b, attrs={})
            assert {k: plain(v) for k, v in a.attrs.items()} == {k: plain(v) for k, v in b.attrs.items()}


@given(seed=st.integers(0, 100_000), devices=st.integers(1, 4), flow=st.booleans())
@settings(max_examples=examples(40), deadline=None)
def test_random_programs_survive_the_round_trip(seed: int, devices: int, flow: bool) -> None:
    with af.Graph().as_default():
        program = random_flow_program(seed) if flow else random_program(seed)
        plan = split_plan(list(program.fetches), list(program.feeds), seed, devices)
    for part in plan.parts.values():
        require_same(part, over_the_wire(part))


def test_decoded_part_computes_the_same() -> None:
    """Register the part with a worker, so that all is needed that the runtime reads of a part."""
    with af.Graph().as_default(), af.Session() as session:
        x = af.placeholder("float32", [None, 3])
        weights = af.constant(np.arange(6, dtype=np.float32).reshape(3, 2))
        text = af.constant([b"a", b"\x00b"])
        total = af.while_loop(lambda i, s: i < 4, lambda i, s: (i + 1, s + af.cast(i, "float32")), [0, 0.5])[1]
        fetches = [af.nn.relu(x @ weights - 3.0), text, total]
        value = np.ones((2, 3), np.float32)
        expected = session.run_sync(fetches, {x: value})
        (part,) = session.plan(fetches, [x]).parts.values()
        found = run(over_the_wire(part), [value])
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)


def run(part: Part, feeds: list[Any]) -> list[Any]:
    async def main() -> list[Any]:
        worker, step = Worker(), Step()
        handle = await worker.register(part, 1, SessionConfig())
        try:
            return list(await worker.run(handle, feeds, step))
        finally:
            step.finish()

    return asyncio.run(main())


# ── function bodies of nodes ─────────────────────────────────────────────────────────────────────────────────────────


def batched(inside: Any) -> tuple[Part, Any]:
    """Return a part that calls a batch function in a batch function, and its feed. Both are in the test's graph."""
    with af.Session() as session:
        x = af.placeholder("float32", [None, 3])
        inner = af.nondifferentiable_batch_function(1, 4, 0)(inside)
        y = af.nondifferentiable_batch_function(1, 4, 0)(lambda a: inner(a * 2.0) + 1.0)(x)
        (part,) = session.plan(y, [x]).parts.values()
    return part, np.ones((2, 3), np.float32)


def altered(part: Part, change: Any) -> Part:
    """Return the part with another body of its one node that has a body."""
    ((device, graph),) = part.subgraphs.items()
    (node,) = (n for n in graph.nodes.values() if n.body is not None)
    made = replace(node, attrs={**node.attrs, "_body": change(node.body)})
    return replace(part, subgraphs={device: replace(graph, nodes={**graph.nodes, node.name: made})})


def test_bodies_survive_the_round_trip_and_compute_the_same() -> None:
    part, value = batched(lambda a: a @ af.constant(np.ones((3, 2), np.float32)))
    found = over_the_wire(part)
    require_same(part, found)
    assert found.size == part.size > sum(len(graph.nodes) for graph in part.subgraphs.values())
    np.testing.assert_array_equal(run(found, [value])[0], np.full((2, 2), 7.0))


def with_another_feed(body: ClientGraph) -> ClientGraph:
    arg = Node("more", "_Arg", (), (), {"T": af.float32, "index": 1}, (SPEC,))
    return replace(body, nodes={arg.name: arg, **body.nodes}, feeds=2)


def with_another_fetch(body: ClientGraph) -> ClientGraph:
    return replace(
        body,
        nodes={k: replace(n, attrs={**n.attrs, "index": 7}) if n.op == "_Retval" else n for k, n in body.nodes.items()},
    )


def of_another_dtype(body: ClientGraph) -> ClientGraph:
    spec = OutputSpec(af.int32, (None, 3))
    arg = Node("a", "_Arg", (), (), {"T": af.int32, "index": 0}, (spec,))
    cast = Node("c", "Cast", (Edge("a", 0),), (), {"SrcT": af.int32, "DstT": af.float32, "Truncate": False}, (SPEC,))
    out = Node("r", "_Retval", (Edge("c", 0),), (), {"T": af.float32, "index": 0})
    return ClientGraph({"a": arg, "c": cast, "r": out}, 1, 1)


def without_an_op(body: ClientGraph) -> ClientGraph:
    return replace(body, nodes={k: replace(n, op="NoSuchOp") if n.op == "Mul" else n for k, n in body.nodes.items()})


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (with_another_feed, InvalidArgumentError),
        (with_another_fetch, InvalidArgumentError),
        (of_another_dtype, InvalidArgumentError),
        (without_an_op, InvalidArgumentError),
    ],
)
def test_body_that_does_not_fit_its_node_is_refused(change: Any, kind: type[OpError]) -> None:
    part, _ = batched(lambda a: a)
    with pytest.raises(kind):
        over_the_wire(altered(part, change))


def test_size_and_nesting_of_bodies_are_bounded() -> None:
    part, _ = batched(lambda a: a)
    with pytest.raises(ResourceExhaustedError, match="nodes of a plan"):
        decode_part(*encode_part(part), Limits(nodes=part.size - 1))

    def deeper(body: ClientGraph) -> ClientGraph:
        (node,) = (n for n in body.nodes.values() if n.body is not None)
        deep = body
        for _ in range(8):
            deep = replace(body, nodes={**body.nodes, node.name: replace(node, attrs={**node.attrs, "_body": deep})})
        return deep

    part = altered(part, deeper)
    with pytest.raises(ResourceExhaustedError, match="functions in functions"):
        over_the_wire(part)


def test_python_function_in_a_body_stays_in_its_process() -> None:
    part, value = batched(lambda a: af.py_func(lambda rows: rows, [a], af.float32))
    with pytest.raises(PermissionDeniedError, match="Python function"):
        over_the_wire(part)
    assert run(decode_part(*encode_part(part, home=True)), [value])[0].shape == (2, 3)


def test_node_without_its_body_is_not_registered() -> None:
    part, value = batched(lambda a: a)
    with pytest.raises(InvalidArgumentError, match="not there") as caught:
        run(altered(part, lambda body: None), [value])
    assert caught.value.op_type == "BatchFunction"


# ── attributes ───────────────────────────────────────────────────────────────────────────────────────────────────────

SPEC = OutputSpec(af.float32, (2, None))
SOURCE = SourceLine("/home/user/ü.py", 12, "<module>")


def one(**attrs: Any) -> Part:
    """Return a part of one node with these attributes."""
    attrs = {"dtype": af.float32, "shape": (2, None)} | attrs
    node = Node("scope/x_1", "Placeholder", (), (), attrs, (SPEC,), "/device:CPU:0", SOURCE)
    return Part("/job:worker/replica:0/task:1", {"/device:CPU:0": ClientGraph({node.name: node}, 2, 3, ("elsewhere",))})


@pytest.mark.parametrize(
    "value",
    [
        None, True, -(2**63), 2**64 - 1, 1.5, float("inf"), "ü", b"\x00bytes", af.bfloat16, (), [], (1, (2, None), "x"),
        [af.int32, [True]], FunctionRef("f"), np.float32(2.5), np.int8(-1), np.bool_(True), np.zeros((0, 3), np.int64),
        np.array([[b"a", b""]], dtype=object), np.arange(12.0).reshape(3, 4).T, np.arange(100_000.0), np.asarray(3),
        np.array([1, 2], dtype=af.bfloat16.np_dtype), (np.arange(3), np.arange(5000.0)),
    ],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_every_kind_of_attribute_survives_the_round_trip(value: Any) -> None:
    part = one(_attr=value)
    require_same(part, over_the_wire(part))


def test_large_constant_is_a_separate_tensor_sent_once() -> None:
    value = np.arange(10_000.0)
    part = one(_a=value, _b=(value,), _c=np.arange(3.0))
    header, tensors = encode_part(part)
    assert [t.nbytes for t in tensors[1:]] == [80_000]
    assert tensors[1] is value, "it is not copied"
    assert tensors[0].nbytes < 1000
    assert len(msgpack.packb(header)) < 200


def test_decoded_constants_are_read_only() -> None:
    (graph,) = over_the_wire(one(_a=np.arange(3), _b=np.arange(10_000.0))).subgraphs.values()
    (node,) = graph.nodes.values()
    assert not node.attrs["_a"].flags.writeable
    assert not node.attrs["_b"].flags.writeable


@pytest.mark.parametrize(
    "value", [object(), {"a": 1}, 1j, {1}, lambda: 1, 2**64, np.array([object()]), ((((((1,),),),),),)]
)
def test_attribute_that_is_not_plain_data_is_refused_with_its_node(value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        encode_part(one(_attr=value))
    assert (caught.value.node, caught.value.op_type, caught.value.source) == ("scope/x_1", "Placeholder", SOURCE)
    assert isinstance(caught.value, DTypeError) == isinstance(value, np.ndarray)


def test_oversized_plan_is_refused_at_both_ends() -> None:
    part = one(_attr="x" * 5000)
    small = Limits(plan_bytes=1000)
    with pytest.raises(ResourceExhaustedError):
        encode_part(part, small)
    with pytest.raises(ResourceExhaustedError):
        decode_part(*encode_part(part), small)


def test_number_of_nodes_of_a_plan_is_bounded() -> None:
    """Bound the nodes as well as the bytes: a node takes a hundred times the memory of its encoding."""
    header, tensors = encode_part(chain())
    with pytest.raises(ResourceExhaustedError, match="nodes"):
        decode_part(header, tensors, Limits(nodes=1))
    assert decode_part(header, tensors, Limits(nodes=2)).size == 2


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def chain(**changes: Any) -> Part:
    """Return a part of two nodes, a placeholder x and its Neg, with these changes to the second."""
    first = Node("x", "Placeholder", (), (), {"dtype": af.float32, "shape": (2,)}, (OutputSpec(af.float32, (2,)),))
    second = Node("y", "Neg", (Edge("x", 0),), ("x",), {"T": af.float32}, (OutputSpec(af.float32, (2,)),))
    second = replace(second, **changes)
    return Part(
        "/task:0",
        {"/job:localhost/replica:0/task:0/device:CPU:0": ClientGraph({"x": first, second.name: second}, 0, 0)},
    )


def test_unchanged_chain_survives_the_round_trip() -> None:
    require_same(chain(), over_the_wire(chain()))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"op": "NoSuchOp"}, InvalidArgumentError),
        ({"inputs": ()}, InvalidArgumentError),
        ({"inputs": (Edge("x", 1),)}, InvalidArgumentError),
        ({"inputs": (Edge("x", -1),)}, DataLossError),
        ({"inputs": (Edge("y", 0),)}, InvalidArgumentError),
        ({"control": ("y",)}, InvalidArgumentError),
        ({"attrs": {}}, InvalidArgumentError),
        ({"attrs": {"T": af.int32}}, InvalidArgumentError),
        ({"attrs": {"T": "float32; import os"}}, InvalidArgumentError),
        ({"attrs": {"T": None}}, InvalidArgumentError),
        ({"outputs": ()}, InvalidArgumentError),
        ({"outputs": (OutputSpec(af.int32, (2,)),)}, InvalidArgumentError),
        ({"outputs": (OutputSpec(af.float32, (-2,)),)}, DataLossError),
        ({"name": ""}, DataLossError),
        ({"name": "two lines\n"}, DataLossError),
        ({"name": "n" * 5000}, DataLossError),
        ({"op": "AddN", "attrs": {"T": af.float32, "N": 2**62}}, InvalidArgumentError),
        ({"op": "Cast", "attrs": {"SrcT": af.float32, "DstT": af.float32, "Truncate": "yes"}}, InvalidArgumentError),
        ({"op": "Cast", "attrs": {"SrcT": af.float32, "DstT": af.float32}}, InvalidArgumentError),
        ({"op": "CheckNumerics", "attrs": {"T": af.float32}}, InvalidArgumentError),
        ({"op": "_ToHost", "attrs": {"T": af.float32}}, InvalidArgumentError),
        ({"op": "Const", "inputs": (), "attrs": {"value": np.zeros(2), "dtype": af.float32}}, InvalidArgumentError),
        (
            {"op": "Const", "inputs": (), "attrs": {"value": np.zeros(3, np.float32), "dtype": af.float32}},
            InvalidArgumentError,
        ),
        ({"op": "_Arg", "inputs": (), "attrs": {"T": af.float32, "index": [1]}}, DataLossError),
        ({"op": "_Arg", "inputs": (), "attrs": {"T": af.float32, "index": 5}}, InvalidArgumentError),
        ({"op": "_Retval", "outputs": (), "attrs": {"T": 3, "index": 0}}, DataLossError),
    ],
    ids=str,
)
def test_part_that_could_not_run_is_refused(changes: dict[str, Any], kind: type[OpError]) -> None:
    header, tensors = encode_part(chain(**changes))
    with pytest.raises(OpError) as caught:
        decode_part(header, tensors)
    assert isinstance(caught.value, kind)
    if (
        isinstance(caught.value, InvalidArgumentError) and changes.get("op") != "_Arg"
    ):  # that error names no node: there are too few feeds
        assert caught.value.node == "y"


def boundary(op: str, *specs: tuple[int, OutputSpec]) -> dict[str, Node]:
    """Return nodes of feeds or fetches with these indices."""
    found = {}
    for number, (index, spec) in enumerate(specs):
        given = Node(f"x{number}", "Placeholder", (), (), {"dtype": spec.dtype, "shape": spec.dims}, (spec,))
        attrs = {"T": spec.dtype, "index": index}
        if op == "_Arg":
            found[f"a{number}"] = Node(f"a{number}", op, (), (), attrs, (spec,))
        else:
            found |= {given.name: given, f"r{number}": Node(f"r{number}", op, (Edge(given.name, 0),), (), attrs, ())}
    return found


WHOLE, REAL = OutputSpec(af.int32, (2,)), OutputSpec(af.float32, (2,))


@pytest.mark.parametrize("op", ["_Arg", "_Retval"])
def test_index_of_a_feed_or_fetch_is_unique_on_a_device(op: str) -> None:
    """Refuse duplicates: a value would be checked against one node, but reach the readers of both."""
    part = Part("/task:0", {"/device:CPU:0": ClientGraph(boundary(op, (0, WHOLE), (0, REAL)), 2, 2)})
    with pytest.raises(InvalidArgumentError, match="not numbered"):
        over_the_wire(part)
    over_the_wire(Part("/task:0", {"/device:CPU:0": ClientGraph(boundary(op, (0, WHOLE), (1, REAL)), 2, 2)}))


@pytest.mark.parametrize("other", [REAL, OutputSpec(af.int32, (3,))])
def test_devices_must_agree_on_a_feed(other: OutputSpec) -> None:
    first = ClientGraph(boundary("_Arg", (0, WHOLE)), 1, 0)
    with pytest.raises(InvalidArgumentError, match="devices declare feed 0 differently"):
        over_the_wire(Part("/task:0", {"/cpu:0": first, "/cpu:1": replace(first, nodes=boundary("_Arg", (0, other)))}))
    over_the_wire(Part("/task:0", {"/cpu:0": first, "/cpu:1": first}))


def test_only_one_device_may_return_a_fetch() -> None:
    graph = ClientGraph(boundary("_Retval", (0, WHOLE)), 0, 1)
    with pytest.raises(InvalidArgumentError, match="two devices return fetch 0"):
        over_the_wire(Part("/task:0", {"/cpu:0": graph, "/cpu:1": graph}))


PROGRAM: dict[str, Any] = {
    "Tin": (af.float32,),
    "Tout": af.float32,
    "ops": ("Neg", "Square"),
    "operands": (0, 1),
    "dtypes": (af.float32, af.float32),
    "nodes": ("a", "b"),
    "sources": ("", ""),
}


@pytest.mark.parametrize(
    "changes",
    [
        *({"operands": (0,)}, {"operands": (0, 2)}, {"operands": (0, -1)}, {"dtypes": (af.float32,)}, {"nodes": ()}),
        *({"ops": ("Neg", "AddV2")}, {"ops": ("Neg", "ReadFile")}, {"ops": ("Neg", "Conv2D"), "operands": (0, 1, 0)}),
        *({"ops": ("Neg", "Nothing")}, {"sources": ("x:y in z",)}),
        # A member with fewer elements, or smaller ones, would be read past its end.
        *({"ops": ("L2Loss", "Square")}, {"ops": ("Neg", "Rank")}, {"dtypes": (af.float32, af.float16)}),
        *({"ops": ("IsNan", "Square")}, {"dtypes": (af.float16, af.float32)}, {"dtypes": (af.float32, af.bool)}),
    ],
    ids=str,
)
def test_fused_node_with_inconsistent_members_is_not_registered(changes: dict[str, Any]) -> None:
    part = over_the_wire(chain(op="_ElementwiseChain", attrs=PROGRAM | changes))
    with pytest.raises(OpError) as caught:
        run(part, [])
    assert isinstance(caught.value, InvalidArgumentError | NotFoundError)
    assert caught.value.node == "y"


def test_worker_refuses_the_wrong_number_of_feeds() -> None:
    with af.Graph().as_default(), af.Session() as session:
        x = af.placeholder("float32", [])
        (part,) = session.plan([x + 1.0], [x]).parts.values()
    assert run(part, [np.float32(2)]) == [3]
    for feeds in ([], [np.float32(2), np.float32(2)]):
        with pytest.raises(InvalidArgumentError, match="feeds"):
            run(part, feeds)


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ({}, UnimplementedError),
        ({"plan": 2, "task": "t", "subgraphs": 1}, UnimplementedError),
        ({"plan": 1, "task": 1, "subgraphs": 1}, DataLossError),
        ({"plan": 1, "task": "t", "subgraphs": -1}, DataLossError),
        ({"plan": 1, "task": "t", "subgraphs": 10**9}, DataLossError),
        ({"plan": 1, "task": "t", "subgraphs": 2}, DataLossError),
        ({"plan": 1, "task": "t", "subgraphs": 0}, DataLossError),
        ({"plan": 1, "task": "t", "subgraphs": True}, DataLossError),
    ],
    ids=str,
)
def test_malformed_header_is_refused(header: Mapping[str, Any], kind: type[OpError]) -> None:
    _, tensors = encode_part(chain())
    with pytest.raises(kind):
        decode_part(header, tensors)


def test_message_without_its_buffer_is_refused() -> None:
    header, tensors = encode_part(chain())
    for wrong in ([], [np.zeros(3)], [np.zeros((2, 2), np.uint8)], [tensors[0][:0]], [tensors[0][:-1]]):
        with pytest.raises(DataLossError):
            decode_part(header, wrong)
    with pytest.raises(DataLossError):
        decode_part(header, [np.concatenate([tensors[0], tensors[0]])])


@given(seed=st.integers(0, 50), data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_altered_bytes_give_a_part_or_a_typed_error(seed: int, data: st.DataObject) -> None:
    with af.Graph().as_default():
        program = random_flow_program(seed) if seed % 2 else random_program(seed, size=10)
        plan = split_plan(list(program.fetches), list(program.feeds), seed, 2)
    (part,) = plan.parts.values()
    header, tensors = encode_part(part)
    altered = tensors[0].copy()
    for _ in range(data.draw(st.integers(1, 3))):
        altered[data.draw(st.integers(0, altered.size - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([altered.size, altered.size - 1, altered.size // 2]))
    try:
        decoded = decode_part(header, [altered[:cut], *tensors[1:]])
    except (DataLossError, InvalidArgumentError, ResourceExhaustedError):
        return
    encode_part(decoded)


@pytest.mark.parametrize(
    "bomb",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdc\xff\xff" * 50_000,
        b"\x91" * 1_000_000,
        b"\x80" * 1_000_000,
        b"\xc6\xff\xff\xff\xff",
        msgpack.packb([]) + msgpack.packb([0, 2**62, 0, [], 1]),
        msgpack.packb(["d"]) + msgpack.packb([0, 0, 0, [], 2**25]),
    ],
    ids=["list", "map", "nested claims", "nested", "maps", "bytes", "feeds", "nodes"],
)
def test_msgpack_bomb_uses_bounded_memory(bomb: bytes) -> None:
    tracemalloc.start()
    with pytest.raises((DataLossError, ResourceExhaustedError)):
        decode_part({"plan": 1, "task": "t", "subgraphs": 1}, [np.frombuffer(bomb, np.uint8)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 600 << 20
