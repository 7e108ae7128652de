"""The ops that run on the GPU, how they run there, and why others do not.

All facts come from the definitions (`on_host`, `is_numeric`) and the kernels (`synchronises`, `host_results`), so they
are never out of date. An op counts as *numeric* if it computes with numbers in tensors, which a GPU could do. A kernel
that synchronizes is correct, but the host waits for the device there, and a strand that contains it cannot be captured
as a CUDA graph. The tests find these kernels by running them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aioflow.graph.opdef import OPS
from aioflow.kernels.registry import ANY_DEVICE, KERNELS
from aioflow.runtime.bind import BoundNode

_GPU: Final = "GPU"


@dataclass(frozen=True, slots=True)
class OpCoverage:
    """The way in which one op runs on the GPU.

    Attributes:
        op: The op.
        how: "own" (a kernel for the GPU), "portable" (the same function as on the CPU) or "cpu".
        numeric: Whether the op computes with numbers in tensors.
        reason: The reason why it stays on the CPU, otherwise "".
    """

    op: str
    how: str
    numeric: bool
    reason: str = ""


def find_coverage() -> list[OpCoverage]:
    """Return every op that has a CPU kernel, in alphabetical order.

    The kernels of both devices must have been imported.
    """
    devices: dict[str, set[str]] = {}
    for kernel in KERNELS:
        devices.setdefault(kernel.op, set()).add(kernel.device_type)
    return [_covered(op, found) for op, found in sorted(devices.items()) if found & {ANY_DEVICE, "CPU"}]


def _covered(op: str, devices: set[str]) -> OpCoverage:
    if _GPU in devices:
        return OpCoverage(op, "own", True)
    if ANY_DEVICE in devices:
        return OpCoverage(op, "portable", True)
    traits = OPS.get(op).traits
    return OpCoverage(op, "cpu", traits.is_numeric, traits.on_host)


def share(coverage: Sequence[OpCoverage]) -> float:
    """Return the fraction of the numeric ops that run on the GPU."""
    numeric = [c for c in coverage if c.numeric]
    return sum(c.how != "cpu" for c in numeric) / len(numeric)


def is_capturable(nodes: Sequence[BoundNode]) -> bool:
    """Return whether a CUDA graph can replace the bound nodes of a strand: none needs device values on the host.

    CUDA would refuse other nodes itself, but only after the attempt.
    """
    on_host = {b.node.name for b in nodes if b.kernel.host_results}
    inside = {b.node.name for b in nodes}
    for bound in nodes:
        # Gathers with `batch_dims` run the portable kernel, which looks at the indices.
        if bound.kernel.is_async or bound.kernel.synchronises or bound.node.attrs.get("batch_dims"):
            return False
        for argument in bound.arguments:
            if argument.convert is not None and any(
                edge.node in inside and edge.node not in on_host for edge in argument.sources
            ):
                return False
    return True
