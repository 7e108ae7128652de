"""Ops with every fault that hostile calls should find. Only a child of their own test imports this module."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np

from aioflow import Operation, Tensor
from aioflow.errors import InternalError
from aioflow.extend import ShapeContext, define_op, gradient, kernel

__all__: list[str] = []

_KERNELS = ("Crash", "Gradient", "Hang", "Huge", "Index", "Internal", "Left", "Name", "Shape", "Size")


def _no_shape(ctx: ShapeContext) -> Any:
    return [][ctx.attrs["k"]]


for _name in _KERNELS:
    _inputs = "x: float32" if _name == "Gradient" else ""
    _shape = _no_shape if _name == "Shape" else None
    define_op(f"Faulty{_name}", _inputs, "y: float32", ["k: int = 3"], shape=_shape, stateful=_name != "Left")


@gradient("FaultyGradient")
def no_gradient(op: Operation, grad: Tensor) -> Any:
    return op.attrs["nothing"]


@kernel("FaultyCrash")
def crash(*, k: int) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


@kernel("FaultyHang")
def hang(*, k: int) -> Any:
    while True:
        pass


@kernel("FaultyLeft")
def left(*, k: int) -> Any:
    while True:
        pass


@kernel("FaultyHuge")
def huge(*, k: int) -> Any:
    return np.zeros(1 << 40, np.float32)


@kernel("FaultyIndex")
def index(*, k: int) -> Any:
    items: list[Any] = []
    return items[0]


@kernel("FaultyInternal")
def internal(*, k: int) -> Any:
    raise InternalError("of its own")


@kernel("FaultyName")
def name(*, k: int) -> Any:
    return getattr(np, "no_such_function")()  # noqa: B009  # the type checker would find it


@kernel("FaultySize")
def size(*, k: int) -> Any:
    return np.zeros(-1)
