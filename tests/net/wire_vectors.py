"""Generator of docs/wire_vectors.json, from the plain implementation: `python -m tests.net.wire_vectors`."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any, Final

import msgpack

from tests.net.plain_client import Part
from tests.net.plain_wire import (
    CANCEL,
    CLOSE,
    CONNECTING,
    FAILURE,
    HEARTBEAT,
    LISTENING,
    OF_CLIENTS,
    PROVES,
    PUSH,
    REPLY,
    REQUEST,
    SEALS,
    SHARES,
    TASK,
    Sealing,
    Tensor,
    bare,
    client_secret,
    frame_key,
    frames,
    hello,
    proof,
)

__all__ = ["FILE", "pattern", "vectors"]

FILE: Final = Path(__file__).resolve().parents[2] / "docs" / "wire_vectors.json"

_SECRET: Final = b"a secret of the whole cluster"
_ERROR: Final = {
    "error": "InvalidArgumentError",
    "message": "wrong number of feeds",
    "node": "x",
    "op": "_Arg",
    "source": ["train.py", 12, "main"],
    "expected": "1",
    "actual": "2",
    "applied": False,
    "traceback": "",
}

# dtype, shape, elements in row-major order (complex: both parts; strings: bytes in hex), encoded bytes in hex.
_ELEMENTS: Final[tuple[tuple[str, list[int], list[Any], str], ...]] = (
    ("bool", [3], [True, False, True], "010001"),
    ("uint8", [2], [0, 255], "00ff"),
    ("int8", [2], [-128, 127], "807f"),
    ("uint16", [2], [1, 65535], "0100ffff"),
    ("int16", [2], [-2, 258], "feff0201"),
    ("uint32", [1], [4294967294], "feffffff"),
    ("int32", [2, 2], [1, -1, 66051, 0], "01000000ffffffff0302010000000000"),
    ("uint64", [1], [2**64 - 1], "ffffffffffffffff"),
    ("int64", [], [-3], "fdffffffffffffff"),
    ("float16", [3], [1.0, -2.0, 65504.0], "003c00c0ff7b"),
    ("bfloat16", [3], [1.0, -1.5, 3.0], "803fc0bf4040"),
    ("float8_e5m2", [2], [1.0, -2.0], "3cc0"),
    ("float8_e4m3fn", [2], [1.0, -2.0], "38c0"),
    ("float8_e4m3fnuz", [2], [1.0, -2.0], "40c8"),
    ("float8_e4m3b11fnuz", [2], [1.0, -2.0], "58e0"),
    ("float8_e5m2fnuz", [2], [1.0, -2.0], "40c4"),
    ("float8_e8m0fnu", [2], [1.0, 2.0], "7f80"),
    ("float4_e2m1fn", [2], [1.0, -2.0], "020c"),
    ("int4", [2], [7, 1], "0701"),
    ("uint4", [2], [15, 0], "0f00"),
    ("int2", [2], [1, 0], "0100"),
    ("uint2", [2], [3, 1], "0301"),
    ("float32", [1, 2], [1.5, -0.0], "0000c03f00000080"),
    ("float64", [1], [0.1], "9a9999999999b93f"),
    ("complex64", [1], [[1.0, -2.0]], "0000803f000000c0"),
    ("complex128", [1], [[0.5, 1.0]], "000000000000e03f000000000000f03f"),
    ("string", [2, 2], ["6869", "", "c3a9", "00"], "0200000000000000020000000100000068 69 c3a9 00".replace(" ", "")),
    ("string", [], ["61"], "0100000061"),
    ("float32", [0, 3], [], ""),
)


def pattern(size: int) -> bytes:
    """Return the content of a tensor too long for the file: byte i is (7 i + 1) mod 251."""
    return bytes((7 * i + 1) % 251 for i in range(size))


def _request(kind: str, body: dict[str, Any], timeout: float | None = 10.0) -> dict[str, Any]:
    return {"kind": kind, "timeout": timeout, "body": body}


def _run() -> dict[str, Any]:
    return _request(
        "run",
        {"handle": 1, "step": 72057594037927936, "trace": False, "beat": 3, "patience": 1.0, "seconds": None},
        None,
    )


def _messages() -> list[tuple[str, int, int, dict[str, Any], list[Tensor]]]:
    two = ("float32", (2,), struct.pack("<2f", 1.0, 2.0))
    texts = ("string", (2,), bytes.fromhex("02000000000000006869"))
    deliver = {"edge": "edge_1_x:0", "tag": "", "dead": False}
    return [
        ("a request without tensors", REQUEST, 1, _request("hello", {}), []),
        ("a step", REQUEST, 72057594037927936, _run(), [two, texts]),
        ("its answer", REPLY, 72057594037927936, {"devices": None, "origin": 0.0}, [two]),
        ("an error", FAILURE, 3, _ERROR, []),
        (
            "a value",
            PUSH,
            72057594037927936,
            _request("deliver", deliver, None),
            [("bfloat16", (), bytes.fromhex("803f"))],
        ),
        ("a value that is dead", PUSH, 72057594037927936, _request("deliver", {**deliver, "dead": True}, None), []),
        ("what is not wanted any more", CANCEL, 72057594037927936, {}, []),
        ("no elements", REPLY, 4, {}, [("float32", (0, 3), b""), two]),
        ("texts, and numbers of every size", REPLY, 2**64 - 1, {"é": "ü" * 40, "n": [0, -1, 127, 128, -33, 2**63]}, []),
    ]


def _frame_vectors() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": "a heartbeat", "kind": HEARTBEAT, "request": 7, "hex": bare(HEARTBEAT, 7).hex()},
        {"name": "a goodbye", "kind": CLOSE, "request": 0, "hex": bare(CLOSE).hex()},
    ]
    for name, kind, request, document, tensors in _messages():
        (frame,) = frames(kind, request, document, tensors)
        described = [{"dtype": dtype, "shape": list(shape), "hex": data.hex()} for dtype, shape, data in tensors]
        found.append(
            {
                "name": name,
                "kind": kind,
                "request": request,
                "document": document,
                "tensors": described,
                "hex": frame.hex(),
            }
        )
    return found


def _large_vectors() -> list[dict[str, Any]]:
    """Return messages of several frames, whose tensors hold `pattern`."""
    found = []
    for sizes, chunk in (((1 << 16) + 1,), 4 << 20), ((5, 100_000), 40_000), ((2_500_000,), 1 << 20):
        tensors = [("uint8", (size,), pattern(size)) for size in sizes]
        data = list(frames(REPLY, 9, {"a": 1}, tensors, chunk))
        described = [
            {"prefix": frame[:32].hex(), "bytes": len(frame), "sha256": hashlib.sha256(frame).hexdigest()}
            for frame in data
        ]
        found.append(
            {"kind": REPLY, "request": 9, "document": {"a": 1}, "sizes": sizes, "chunk": chunk, "frames": described}
        )
    return found


def _proof_vectors() -> dict[str, Any]:
    connecting = hello(0x1111, PROVES | SEALS) + b"\xaa" * 32
    listening = hello(0x2222, PROVES) + b"\xbb" * 32
    found: dict[str, Any] = {
        "secret": _SECRET.hex(),
        "secret of clients": client_secret(_SECRET).hex(),
        "connecting": {"incarnation": 0x1111, "flags": PROVES | SEALS, "nonce": "aa" * 32, "opening": connecting.hex()},
        "listening": {"incarnation": 0x2222, "flags": PROVES, "nonce": "bb" * 32, "opening": listening.hex()},
    }
    for role in (CONNECTING, LISTENING):
        end = found[role.decode()]
        key = frame_key(_SECRET, role, connecting, listening)
        sealing = Sealing(key)
        sent = [bare(HEARTBEAT, 1), *frames(REQUEST, 1, _request("hello", {})), bare(CLOSE)]
        end["proof"] = proof(_SECRET, role, connecting, listening).hex()
        end["key"] = key.hex()
        end["frames"] = [{"hex": frame.hex(), "tag": sealing.tag(frame).hex()} for frame in sent]
    return found


def _plan_vector() -> dict[str, Any]:
    """Return a part that computes y = c + x for a fed x and fetches y."""
    task = "/job:ps/replica:0/task:0"
    part = Part(task, f"{task}/device:CPU:0", feeds=1, fetches=1)
    kind = part.dtype("float32")
    x = part.node("x", "_Arg", [], {"T": kind, "index": 0}, [("float32", [None])])
    value = part.constant("float32", (), struct.pack("<f", 2.0))
    c = part.node("c", "Const", [], {"value": value, "dtype": kind}, [("float32", [])])
    y = part.node("y", "AddV2", [(c, 0), (x, 0)], {"T": kind}, [("float32", [None])])
    part.node("fetch", "_Retval", [(y, 0)], {"T": kind, "index": 0})
    body, ((_, _, data),) = part.message()
    return {"body": body, "records": [_plain(record) for record in part.records()], "hex": data.hex()}


def _plain(value: Any) -> Any:
    """Return `value` with bytes replaced by {"hex": …}, since JSON has no bytes."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def vectors() -> dict[str, Any]:
    """Return the content of the file."""
    headers = [{"document": [[], doc], "hex": msgpack.packb([[], doc]).hex()} for doc in ({}, {"x": 1.5, "y": None})]
    return {
        "version": 2,
        "hellos": [
            {"incarnation": number, "flags": flags, "hex": hello(number, flags).hex()}
            for number, flags in (
                (1, 0),
                (2**63 - 1, PROVES),
                (0x0123456789ABCDEF, PROVES | SEALS),
                (2, PROVES | OF_CLIENTS),
                (3, TASK | SHARES),
            )
        ],
        "proof": _proof_vectors(),
        "elements": [
            {"dtype": dtype, "shape": shape, "values": values, "hex": data} for dtype, shape, values, data in _ELEMENTS
        ],
        "headers": headers,
        "frames": _frame_vectors(),
        "large": _large_vectors(),
        "plan": _plan_vector(),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(vectors(), indent=1, ensure_ascii=True) + "\n", encoding="ascii")
