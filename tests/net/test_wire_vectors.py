"""Agreement with docs/wire_vectors.json, made by an independent implementation: same bytes, same values."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioflow.compiler.ir import Edge
from aioflow.graph.dtypes import as_dtype
from aioflow.net.credentials import Credentials
from aioflow.net.decoder import Decoder
from aioflow.net.errors_codec import decode_error
from aioflow.net.framing import CHUNK_BYTES, VERSION, FrameKind, WireMessage, bare_frame, encode
from aioflow.net.limits import DEFAULT_LIMITS
from aioflow.net.plan_codec import decode_part, encode_part
from aioflow.net.proving import SEALED_CHUNK_BYTES, ConnectionEnd, HelloFields, Proving, client_secret, parse_hello
from aioflow.net.server import client_options, server_options
from aioflow.net.tensor_format import WIRE_DTYPES, Destination, parse_spec, to_wire
from tests.net.wire_vectors import FILE, pattern, vectors

VECTORS: dict[str, Any] = json.loads(FILE.read_text(encoding="ascii"))


def array_of(dtype: str, shape: list[int], data: bytes) -> Any:
    destination = Destination(parse_spec([dtype, shape, len(data)], DEFAULT_LIMITS))
    destination.buffer[:] = data
    return destination.finish()


def received(data: bytes, decoder: Decoder | None = None) -> list[WireMessage]:
    decoder = decoder or Decoder()
    found: list[WireMessage] = []
    while data:
        buffer = decoder.buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        found += decoder.received(count)
        data = data[count:]
    return found


def same(message: WireMessage, vector: dict[str, Any], tensors: list[Any]) -> None:
    assert (message.kind, message.request, message.header) == (vector["kind"], vector["request"], vector["document"])
    assert len(message.tensors) == len(tensors)
    for found, wanted in zip(message.tensors, tensors, strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.tolist() == wanted.tolist()


def test_file_is_up_to_date_with_the_plain_implementation() -> None:
    assert json.loads(json.dumps(vectors())) == VECTORS
    assert VECTORS["version"] == VERSION


@pytest.mark.parametrize("vector", VECTORS["hellos"], ids=lambda v: str(v["flags"]))
def test_hellos(vector: dict[str, Any]) -> None:
    hello = HelloFields(vector["incarnation"], flags=vector["flags"])
    assert hello.to_bytes().hex() == vector["hex"]
    assert parse_hello(bytes.fromhex(vector["hex"])) == hello


@pytest.mark.parametrize("role", ConnectionEnd)
def test_proofs_and_tags(role: ConnectionEnd) -> None:
    whole = VECTORS["proof"]
    ours, theirs = (whole[which.value.decode()] for which in (role, role.other))
    secret, nonce = bytes.fromhex(whole["secret"]), bytes.fromhex(ours["nonce"])
    proving = Proving(role, ours["incarnation"], secret, bool(ours["flags"] & 2), nonce)
    assert proving.opening.hex() == ours["opening"]
    said = [proving.received(bytes.fromhex(theirs["opening"])[start : start + 32]) for start in (0, 32)]
    said.append(proving.received(bytes.fromhex(theirs["proof"])))
    assert b"".join(said).hex() == ours["proof"]
    assert proving.done
    seals = proving.seals()
    assert seals is not None
    for vector in ours["frames"]:
        frame, tag = seals[0].sealed([bytes.fromhex(vector["hex"])])
        assert (frame.hex(), tag.hex()) == (vector["hex"], vector["tag"])
    coming = b"".join(bytes.fromhex(vector["hex"] + vector["tag"]) for vector in theirs["frames"])
    messages = received(coming, Decoder(seal=seals[1]))
    assert [message.kind for message in messages] == [FrameKind.HEARTBEAT, FrameKind.REQUEST, FrameKind.CLOSE]


def test_the_secret_of_clients() -> None:
    whole = VECTORS["proof"]
    assert client_secret(bytes.fromhex(whole["secret"])).hex() == whole["secret of clients"]


def test_elements_cover_every_dtype() -> None:
    assert {vector["dtype"] for vector in VECTORS["elements"]} == set(WIRE_DTYPES)


@pytest.mark.parametrize("vector", VECTORS["elements"], ids=lambda v: f"{v['dtype']} {v['shape']}")
def test_elements(vector: dict[str, Any]) -> None:
    dtype, values = as_dtype(vector["dtype"]), vector["values"]
    if dtype.is_complex:
        values = [complex(*pair) for pair in values]
    if vector["dtype"] == "string":
        wanted = np.empty(len(values), object)
        wanted[:] = [bytes.fromhex(text) for text in values]
    else:
        wanted = np.array(values, dtype.np_dtype)
    wanted = wanted.reshape(vector["shape"])
    spec, data = to_wire(wanted, DEFAULT_LIMITS)
    assert bytes(data).hex() == vector["hex"]
    assert spec.document() == [vector["dtype"], vector["shape"], len(vector["hex"]) // 2]
    found = array_of(vector["dtype"], vector["shape"], bytes.fromhex(vector["hex"]))
    assert (found.dtype, found.shape, found.tolist()) == (wanted.dtype, wanted.shape, wanted.tolist())


@pytest.mark.parametrize("vector", VECTORS["headers"], ids=lambda v: v["hex"])
def test_headers(vector: dict[str, Any]) -> None:
    encoded = encode(WireMessage(FrameKind.REPLY, 1, vector["document"][1]))
    assert encoded.header.hex() == vector["hex"]


@pytest.mark.parametrize("vector", VECTORS["frames"], ids=lambda v: v["name"])
def test_frames(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    (message,) = received(data)
    if "document" not in vector:
        assert bare_frame(FrameKind(vector["kind"]), vector["request"]) == data
        assert (message.kind, message.request) == (vector["kind"], vector["request"])
        return
    tensors = [array_of(one["dtype"], one["shape"], bytes.fromhex(one["hex"])) for one in vector["tensors"]]
    same(message, vector, tensors)
    encoded = encode(WireMessage(FrameKind(vector["kind"]), vector["request"], vector["document"], tensors))
    assert b"".join(map(bytes, encoded.whole())) == data
    if message.kind is FrameKind.FAILURE:
        assert type(decode_error(message.header, "ps")).__name__ == vector["document"]["error"]


@pytest.mark.parametrize("vector", VECTORS["large"], ids=lambda v: str(v["sizes"]))
def test_messages_of_several_frames(vector: dict[str, Any]) -> None:
    assert vector["chunk"] <= CHUNK_BYTES
    assert SEALED_CHUNK_BYTES in [one["chunk"] for one in VECTORS["large"]]
    tensors = [np.frombuffer(pattern(size), np.uint8) for size in vector["sizes"]]
    encoded = encode(WireMessage(FrameKind(vector["kind"]), vector["request"], vector["document"], tensors))
    written = [encoded.head, *(b"".join(map(bytes, chunk)) for chunk in encoded.chunks(vector["chunk"]))]
    described = [
        {"prefix": frame[:32].hex(), "bytes": len(frame), "sha256": hashlib.sha256(frame).hexdigest()}
        for frame in written
    ]
    assert described == vector["frames"]
    (message,) = received(b"".join(written))
    same(message, vector, tensors)


def test_a_plan() -> None:
    vector = VECTORS["plan"]
    data = np.frombuffer(bytes.fromhex(vector["hex"]), np.uint8)
    part = decode_part(vector["body"]["part"], [data])
    ((device, graph),) = part.subgraphs.items()
    assert (part.task, device) == ("/job:ps/replica:0/task:0", "/job:ps/replica:0/task:0/device:CPU:0")
    assert [(node.name, node.op) for node in graph.nodes.values()] == [
        ("x", "_Arg"),
        ("c", "Const"),
        ("y", "AddV2"),
        ("fetch", "_Retval"),
    ]
    assert graph.nodes["y"].inputs == (Edge("c", 0), Edge("x", 0))
    assert graph.nodes["c"].attrs["value"] == np.float32(2.0)
    assert graph.nodes["x"].outputs[0].dims == (None,)
    header, (again,) = encode_part(part)
    assert header == vector["body"]["part"]
    assert decode_part(header, [again]) == part  # the two encoders order the texts differently


def test_document_has_the_heartbeats_and_connections_of_a_server() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "wire.md").read_text("utf-8").split())
    server, client = server_options(Credentials()), client_options(Credentials())
    assert server.heartbeat == client.heartbeat
    assert f"Each end sends one every {server.heartbeat} s" in text
    assert f"a server after {server.misses} ({server.heartbeat * server.misses:g} s)" in text
    assert f"after {client.misses} ({client.heartbeat * client.misses:.3g} s)" in text
    connections = f"{server.connections} of clients, {server.peers} of tasks, {server.unauthenticated} unauthenticated"
    assert f"| connections | {connections} |" in text
