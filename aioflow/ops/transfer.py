"""The two ends of an edge between devices (whitepaper, 3.2.2). The partition makes them; users never do."""

from __future__ import annotations

from typing import Final

from aioflow.graph.opdef import define_op

__all__ = ["RECV", "SEND"]

SEND: Final = "_Send"
RECV: Final = "_Recv"

# `tensor_name` names the edge, once in a plan. `maybe_dead`: whether the value may be on a branch that is not taken.
# `compression`: how a float32 value crosses ("" for as it is).
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
        "compression: string = ''",
    ],
    stateful=True,
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
        "compression: string = ''",
    ],
    shape=lambda ctx: ctx.attrs["shape"],
    stateful=True,
)
