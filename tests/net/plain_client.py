"""A blocking socket client without asyncio and aioflow, written from docs/wire.md alone."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgpack

from tests.net.plain_wire import (
    CANCEL,
    CHUNK,
    CLOSE,
    CONNECTING,
    FAILURE,
    HEARTBEAT,
    LISTENING,
    OF_CLIENTS,
    PREFIX,
    PROVES,
    PUSH,
    REPLY,
    REQUEST,
    SEALS,
    Frame,
    Sealing,
    Tensor,
    bare,
    frame_key,
    frames,
    hello,
    proof,
    read_prefix,
    tensors_in,
)

__all__ = ["PS", "WORKER", "Answer", "Failed", "Part", "PlainClient", "doubling"]

PS, WORKER = "/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0"
Answer = tuple[dict[str, Any], list[Tensor]]


class Failed(Exception):
    """A FAILURE in place of an answer; the argument is its document."""


class PlainClient:
    """One connection. It answers heartbeats and the worker's requests while it waits for its own answers.

    Args:
        address: Host and port of the worker.
        incarnation: Incarnation that this client announces.
        secret: Secret of the cluster or of its clients; None connects without a proof.
        nonce: 32 random bytes.
        seals: Whether to require tags on frames; off the loopback interface the worker requires them anyway.
        tls: TLS context; None connects without TLS.
        seconds: Timeout of the socket, in seconds.
    """

    def __init__(
        self,
        address: tuple[str, int],
        incarnation: int,
        secret: bytes | None = None,
        nonce: bytes = b"",
        seals: bool = False,
        tls: ssl.SSLContext | None = None,
        seconds: float = 60.0,
    ) -> None:
        self._socket = socket.create_connection(address, seconds)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=address[0])
        self._ours: Sealing | None = None
        self._theirs: Sealing | None = None
        self._beat = self.heard = 0
        self._number = 1 << 62  # number of the last request that is not a step; numbers of steps are lower
        self._large: tuple[Frame, Any, bytearray] | None = None
        self._answers: dict[int, Answer | Failed] = {}
        self.pushed: list[Answer] = []
        flags = 0 if secret is None else PROVES | (SEALS if seals else 0)
        if secret is not None and secret.startswith(b"aioflow-client:"):
            flags |= OF_CLIENTS
        try:
            self._open(hello(incarnation, flags) + (nonce if flags else b""), secret)
        except BaseException:
            self._socket.close()
            raise

    def _open(self, ours: bytes, secret: bytes | None) -> None:
        self._socket.sendall(ours)
        theirs = self._read(len(ours))
        self.peer_incarnation = int.from_bytes(theirs[16:24], "little")
        if secret is None:
            return
        self._socket.sendall(proof(secret, CONNECTING, ours, theirs))
        if self._read(32) != proof(secret, LISTENING, ours, theirs):
            raise PermissionError("the worker does not know the secret, or refuses ours")
        if (ours[12] | theirs[12]) & SEALS:
            self._ours = Sealing(frame_key(secret, CONNECTING, ours, theirs))
            self._theirs = Sealing(frame_key(secret, LISTENING, ours, theirs))

    # ── frames ──

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                raise ConnectionError("the worker has ended the connection")
            data += piece
        return bytes(data)

    def _write(self, frame: bytes) -> None:
        self._socket.sendall(frame + (b"" if self._ours is None else self._ours.tag(frame)))

    def _send(self, kind: int, number: int, document: dict[str, Any], tensors: Sequence[Tensor] = ()) -> None:
        for frame in frames(kind, number, document, tensors, 4 << 20 if self._ours is None else 1 << 20):
            self._write(frame)

    def _frame(self) -> None:
        """Read one frame and handle it."""
        data = self._read(PREFIX.size)
        frame = read_prefix(data)
        data += self._read(frame.header + frame.gap + frame.inline)
        if self._theirs is not None and self._read(16) != self._theirs.tag(data):
            raise ConnectionError("a frame with a wrong tag")
        if frame.kind == HEARTBEAT:
            self.heard = frame.request
            self._beat += 1
            self._write(bare(HEARTBEAT, self._beat))
        elif frame.kind == CLOSE:
            raise ConnectionError("the worker closes the connection")
        elif frame.kind == CHUNK:
            self._chunk(data[PREFIX.size :])
        else:
            described, document = msgpack.unpackb(data[PREFIX.size : PREFIX.size + frame.header])
            if frame.more:
                self._large = frame, [described, document], bytearray()
            else:
                payload = data[PREFIX.size + frame.header + frame.gap :]
                self._message(frame, document, tensors_in(described, payload))

    def _chunk(self, data: bytes) -> None:
        if self._large is None:
            raise ConnectionError("a chunk of nothing")
        frame, (described, document), payload = self._large
        payload += data
        if len(payload) == frame.payload:
            self._large = None
            self._message(frame, document, tensors_in(described, bytes(payload)))

    def _message(self, frame: Frame, document: dict[str, Any], tensors: list[Tensor]) -> None:
        if frame.kind == REPLY:
            self._answers[frame.request] = document, tensors
        elif frame.kind == FAILURE and not frame.request:
            raise Failed(document)
        elif frame.kind == FAILURE:
            self._answers[frame.request] = Failed(document)
        elif frame.kind == REQUEST and document["kind"] == "wanted":
            self._send(REPLY, frame.request, {"wanted": True})
        elif frame.kind == PUSH:
            self.pushed.append((document, tensors))

    # ── calls ──

    def start(self, kind: str, body: dict[str, Any], tensors: Sequence[Tensor] = (), number: int = 0) -> int:
        """Send a request and return its number, for `answer`."""
        self._number += 1
        number = number or self._number
        self._send(REQUEST, number, {"kind": kind, "timeout": 30.0, "body": body}, tensors)
        return number

    def answer(self, number: int) -> Answer:
        """Wait for the answer of a request; raise Failed for a FAILURE."""
        while number not in self._answers:
            self._frame()
        found = self._answers.pop(number)
        if isinstance(found, Failed):
            raise found
        return found

    def call(self, kind: str, body: dict[str, Any], tensors: Sequence[Tensor] = ()) -> Answer:
        """Send a request and wait for the answer."""
        return self.answer(self.start(kind, body, tensors))

    def push(self, kind: str, body: dict[str, Any], tensors: Sequence[Tensor] = ()) -> None:
        """Send a message that has no answer."""
        self._send(PUSH, 0, {"kind": kind, "timeout": None, "body": body}, tensors)

    def cancel(self, number: int) -> None:
        """Cancel a request."""
        self._send(CANCEL, number, {})

    def run(self, handle: int, step: int, feeds: Sequence[Tensor] = (), patience: float = 1.0) -> int:
        """Start a step and return its number; `answer` returns its fetches.

        If the last heartbeat that the client received was sent more than `patience` seconds ago, the worker first asks
        whether the step is still wanted.
        """
        body = {
            "handle": handle,
            "trace": False,
            "beat": self.heard,
            "patience": patience,
            "seconds": 30.0,
            "answered": True,
        }
        return self.start("run", body, feeds, step)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._write(bare(CLOSE))
        self._socket.close()


class Part:
    """A part of a plan, for one device of a task, written record by record."""

    def __init__(self, task: str, device: str, feeds: int, fetches: int) -> None:
        self._texts: dict[str, int] = {}
        self._device = self._text(device)
        self._task, self._feeds, self._fetches = task, feeds, fetches
        self._nodes: list[list[Any]] = []

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def dtype(self, name: str) -> list[Any]:
        """Return the attribute value of a dtype."""
        return [0, self._text(name)]

    def constant(self, dtype: str, shape: Sequence[int], data: bytes) -> list[Any]:
        """Return the attribute value of a constant."""
        return [4, dtype, list(shape), len(data), data]

    def node(
        self,
        name: str,
        op: str,
        inputs: Sequence[tuple[int, int]],
        attrs: dict[str, Any],
        outputs: Sequence[tuple[str, Sequence[int | None] | None]] = (),
    ) -> int:
        """Add a node and return its number."""
        record = [name, self._text(op), [number for edge in inputs for number in edge], []]
        record.append([x for key, value in attrs.items() for x in (self._text(key), value)])
        record.append([x for dtype, dims in outputs for x in (self._text(dtype), dims)])
        self._nodes.append([*record, self._text(""), None])
        return len(self._nodes) - 1

    def records(self) -> list[Any]:
        """Return the records of the buffer, in order."""
        subgraph = [self._device, self._feeds, self._fetches, [], len(self._nodes)]
        return [list(self._texts), subgraph, *self._nodes]

    def message(self) -> tuple[dict[str, Any], list[Tensor]]:
        """Return the body and the tensors of a `register` request."""
        data = b"".join(msgpack.packb(record) for record in self.records())
        config = {"inline_budget": 0.0002, "executor": "strands", "check_finite": False, "reproducible": False}
        part = {"plan": 1, "task": self._task, "subgraphs": 1}
        return {"part": part, "config": config, "peers": {}}, [("uint8", (len(data),), data)]


def doubling(task: str = PS) -> Part:
    """Return a part that computes y = x + x for a fed x."""
    part = Part(task, f"{task}/device:CPU:0", feeds=1, fetches=1)
    kind = part.dtype("float32")
    x = part.node("x", "_Arg", [], {"T": kind, "index": 0}, [("float32", [None])])
    y = part.node("y", "AddV2", [(x, 0), (x, 0)], {"T": kind}, [("float32", [None])])
    part.node("fetch", "_Retval", [(y, 0)], {"T": kind, "index": 0})
    return part
