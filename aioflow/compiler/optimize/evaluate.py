"""The function by which a pass computes a node. The compiler runs no kernels; its caller supplies this function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.memory.values import Array

# Computes a node from the values of its inputs, as its device would; None if it cannot be computed now.
Evaluate: TypeAlias = Callable[[Node, ClientGraph, Sequence[Array]], Sequence[Array] | None]
