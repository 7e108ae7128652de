"""Which ops run on the GPU, how, and why the others do not.

`find_coverage` goes by the kernel registry, so it is never out of date; only the reasons are written down here. An op
counts as *numeric* where its work is on numbers in tensors: those are what a GPU could do. `SYNCHRONISES` are the GPU
kernels that look at a value on the host (a size that depends on values, a check): correct, but the host waits for the
device there, and a strand with one of them cannot be captured as a CUDA graph. The tests find both by running the
kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aioflow.kernels.registry import ANY_DEVICE, KERNELS
from aioflow.runtime.bind import BoundNode

__all__ = ["HOST_RESULTS", "SYNCHRONISES", "OpCoverage", "find_coverage", "is_capturable", "share"]

_GPU: Final = "GPU"

# Families of ops that stay on the CPU: the beginning of the op's name, whether its work is numeric, and the reason.
_ON_THE_CPU: Final[tuple[tuple[tuple[str, ...], bool, str], ...]] = (
    (
        ("SerializeSparse", "SerializeMany", "DeserializeSparse", "DeserializeMany", "SerializeTensor", "ParseTensor"),
        False,
        "serialised tensors are strings",
    ),
    (("Sparse",), True, "entries in row-major order, and results whose sizes depend on values: the host sorts them"),
    (
        ("ResourceConditionalAcc", "ResourceAccumulator"),
        True,
        "gradients wait for one another in a queue of the event loop",
    ),
    (
        ("String", "Substr", "AsString", "ReduceJoin", "Regex", "StaticRegex", "EncodeBase64", "DecodeBase64"),
        False,
        "strings",
    ),
    (("Save", "Restore", "Sharded", "ReadFile", "WriteFile", "MatchingFiles"), False, "files"),
    (("Reader", "IdentityReader", "WholeFile", "TextLine", "FixedLength", "TFRecord"), False, "files"),
    (("Decode", "Encode", "Parse", "ExtractJpeg"), False, "records and image files are strings"),
    (("FIFOQueue", "PaddingFIFO", "RandomShuffleQueue", "PriorityQueue", "Queue"), False, "queues of the event loop"),
    (("Barrier", "Stage", "Unstage", "Mutex", "ConsumeMutex"), False, "they wait on the event loop"),
    (("Aioflow", "PyFunc"), False, "Python functions"),
    (("Acc",), False, "queues of the event loop"),
)

# GPU kernels of which something is asked on the host.
SYNCHRONISES: Final = frozenset(
    (
        *(
            "Assert",
            "Bincount",
            "CheckNumerics",
            "Div",
            "DynamicPartition",
            "DynamicStitch",
            "FloorDiv",
            "FloorMod",
        ),
        *(
            "GatherNd",
            "HistogramFixedWidth",
            "InvertPermutation",
            "ListDiff",
            "MatrixTriangularSolve",
            "Mod",
        ),
        *(
            "ParallelDynamicStitch",
            "Polygamma",
            "Pow",
            "Print",
            "ResourceApplyFtrl",
            "ResourceApplyFtrlV2",
            "ResourceCountUpTo",
        ),
        *(
            "ResourceGatherNd",
            "ResourceScatterAdd",
            "ResourceScatterDiv",
            "ResourceScatterMax",
            "ResourceScatterMin",
        ),
        *(
            "ResourceScatterMul",
            "ResourceScatterNdAdd",
            "ResourceScatterNdMax",
            "ResourceScatterNdMin",
        ),
        *(
            "ResourceScatterNdSub",
            "ResourceScatterNdUpdate",
            "ResourceScatterSub",
            "ResourceScatterUpdate",
        ),
        *(
            "ResourceSparseApplyAdadelta",
            "ResourceSparseApplyAdagrad",
            "ResourceSparseApplyAdagradV2",
        ),
        *(
            "ResourceSparseApplyCenteredRMSProp",
            "ResourceSparseApplyFtrl",
            "ResourceSparseApplyFtrlV2",
        ),
        *(
            "ResourceSparseApplyMomentum",
            "ResourceSparseApplyProximalAdagrad",
        ),
        *(
            "ResourceSparseApplyProximalGradientDescent",
            "ResourceSparseApplyRMSProp",
            "ReverseSequence",
            "ScatterNd",
        ),
        *(
            "SegmentMax",
            "SegmentMean",
            "SegmentMin",
            "SegmentProd",
            "SegmentSum",
            "SelfAdjointEigV2",
            "StatelessTruncatedNormal",
        ),
        *(
            "TensorScatterAdd",
            "TensorScatterMax",
            "TensorScatterMin",
            "TensorScatterSub",
            "TensorScatterUpdate",
            "Svd",
            "TopK",
        ),
        *(
            "TopKV2",
            "TruncateDiv",
            "TruncateMod",
            "TruncatedNormal",
            "Unique",
            "UniqueV2",
            "UniqueWithCounts",
        ),
        *(
            "UnravelIndex",
            "UnsortedSegmentMax",
            "UnsortedSegmentMin",
            "UnsortedSegmentProd",
            "UnsortedSegmentSum",
        ),
        *("Where",),
    )
)
# Ops whose results are in host memory even on the GPU, so that a shape input that reads them waits for nothing.
HOST_RESULTS: Final = frozenset(
    ("BroadcastArgs", "BroadcastGradientArgs", "Const", "Rank", "Shape", "ShapeN", "Size", "VariableShape")
)


@dataclass(frozen=True, slots=True)
class OpCoverage:
    """How one op runs on the GPU.

    Attributes:
        how: "own" (a kernel for the GPU), "portable" (the same function as on the CPU) or "cpu".
        numeric: Whether its work is on numbers in tensors.
        reason: Why it stays on the CPU, otherwise "".
    """

    op: str
    how: str
    numeric: bool
    reason: str = ""


def find_coverage() -> list[OpCoverage]:
    """Every op that has a CPU kernel, in alphabetical order. The kernels of both devices must have been imported."""
    devices: dict[str, set[str]] = {}
    for kernel in KERNELS:
        devices.setdefault(kernel.op, set()).add(kernel.device_type)
    return [_covered(op, found) for op, found in sorted(devices.items()) if found & {ANY_DEVICE, "CPU"}]


def _covered(op: str, devices: set[str]) -> OpCoverage:
    if _GPU in devices:
        return OpCoverage(op, "own", True)
    if ANY_DEVICE in devices:
        return OpCoverage(op, "portable", True)
    for beginnings, numeric, reason in _ON_THE_CPU:
        if op.startswith(beginnings):
            return OpCoverage(op, "cpu", numeric, reason)
    return OpCoverage(op, "cpu", True)


def share(coverage: Sequence[OpCoverage]) -> float:
    """The part of the numeric ops that run on the GPU."""
    numeric = [c for c in coverage if c.numeric]
    return sum(c.how != "cpu" for c in numeric) / len(numeric)


def is_capturable(nodes: Sequence[BoundNode]) -> bool:
    """Whether the bound nodes of a strand need nothing of the device on the host, so that a CUDA graph can stand for
    them. (CUDA would refuse, but only after the attempt.)
    """
    on_host = {b.node.name for b in nodes if b.node.op in HOST_RESULTS}
    inside = {b.node.name for b in nodes}
    for bound in nodes:
        if bound.kernel.is_async or bound.node.op in SYNCHRONISES or bound.node.attrs.get("batch_dims"):
            return False
        for argument in bound.arguments:
            if argument.convert is not None and any(
                edge.node in inside and edge.node not in on_host for edge in argument.sources
            ):
                return False
    return True
