"""Ops for feeds, fetches and transfers between devices (whitepaper, 3.2.2), created by compiler and worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph.boundary import ARG, PARTIAL_FEED, PARTIAL_FETCH, RECV, RETVAL, SEND
from aioflow.graph.dtypes import DType, bfloat16, float16
from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import define_op
from aioflow.graph.traits import Half, Role, opaque, passes_on, source, state_change
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.core import unchanged

# Copies between the memory of the host and of the node's device; `runtime/host_copies.py` inserts them.
TO_DEVICE: Final = "_ToDevice"
TO_HOST: Final = "_ToHost"
SHARE: Final = "_Share"  # exports the value in place to other libraries
LEND: Final = "_Lend"  # exports the value to another device of the same kind, which copies it

# Compression of float32 values: the dtype on the wire, and whether the value is truncated rather than rounded.
COMPRESSIONS: Final[Mapping[str, tuple[DType, bool]]] = {
    "truncate": (bfloat16, True),
    "bfloat16": (bfloat16, False),
    "float16": (float16, False),
}

define_op(ARG, "", "output: T", ["index: int", "T: type"], made_by="compiler", traits=source(role=Role.FEED))
define_op(
    RETVAL,
    "input: T",
    "",
    ["index: int", "T: type"],
    made_by="compiler",
    traits=passes_on(role=Role.FETCH, half=Half.WIDE),
)

# `tensor_name` identifies the edge within a plan. `maybe_dead`: the value may be on a branch that is not taken.
define_op(
    SEND,
    "tensor: T",
    "",
    [
        "T: type",
        "tensor_name: string",
        "send_device: string",
        "recv_device: string",
        "maybe_dead: bool = False",
    ],
    made_by="compiler",
    traits=state_change(role=Role.SEND),
)
define_op(
    RECV,
    "",
    "tensor: tensor_type",
    [
        "tensor_type: type",
        "shape: shape",
        "tensor_name: string",
        "send_device: string",
        "recv_device: string",
        "maybe_dead: bool = False",
    ],
    shape=lambda ctx: ctx.attrs["shape"],
    made_by="compiler",
    traits=state_change(role=Role.RECV),
)

define_op(TO_DEVICE, "value: T", "copy: T", ["T: type"], shape=unchanged, made_by="worker", traits=opaque())
define_op(TO_HOST, "value: T", "copy: T", ["T: type"], shape=unchanged, made_by="worker", traits=opaque())
define_op(LEND, "value: T", "lent: T", ["T: type"], shape=unchanged, made_by="worker", traits=opaque())
define_op(SHARE, "value: T", "shared: T", ["T: type"], shape=unchanged, made_by="worker", traits=opaque())


def check_compression(kind: str) -> str:
    """Return `kind`. Raise InvalidArgumentError if it is not the name of a compression."""
    if kind not in COMPRESSIONS:
        raise InvalidArgumentError("unknown compression", expected=f"one of {sorted(COMPRESSIONS)}", actual=kind)
    return kind


def compressed(tensor: TensorLike, kind: str = "truncate", name: str | None = None) -> Tensor:
    """Return the same value, which is sent to other devices in 16 bits (whitepaper, 5.5).

    The value is unchanged on its own device.

    Args:
        tensor: The value. Only float32 is compressed.
        kind: "truncate" drops the lower 16 bits, which are zero on arrival. "bfloat16" rounds to the nearest bfloat16.
            "float16" rounds to a type with a smaller range; larger values become infinite.
        name: Name of the node.

    Raises:
        InvalidArgumentError: the kind is unknown.
    """
    return make("Identity", convert_to_tensor(tensor), _compression=check_compression(kind), name=name)


# ── feeds and fetches of a partial run, which arrive and leave while the step runs ────────────────────────────────────


define_op(
    PARTIAL_FEED,
    "",
    "value: dtype",
    ["dtype: type", "shape: shape", "index: int"],
    shape=lambda ctx: ctx.attrs["shape"],
    made_by="worker",
    traits=state_change(stays_home="belongs to a partial run of this process"),
)
define_op(
    PARTIAL_FETCH,
    "value: T",
    "",
    ["T: type", "index: int"],
    made_by="worker",
    traits=state_change(stays_home="belongs to a partial run of this process"),
)
