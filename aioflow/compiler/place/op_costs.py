"""How much work an op is, from the shapes alone: the static half of the cost model (whitepaper, 3.2.1).

An op belongs to a family: what its work is counted in (bytes moved, multiply-adds) and which measured rate turns that
into seconds. What is not listed counts as elementwise. Estimates need to be right in order, not in the last digit:
placement compares them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from aioflow.graph.opdef import CONTROL_FLOW

__all__ = ["FREE_OPS", "REPLICATED_OPS", "RESIDENT_OPS", "SHARING_OPS", "Family", "Operand", "family_of"]


class Operand(NamedTuple):
    """One input or output: its dtype's name, its shape with every size filled in, and its bytes."""

    dtype: str
    dims: tuple[int, ...]
    size: int

    @property
    def elements(self) -> int:
        """How many elements."""
        return math.prod(self.dims)


# Attributes, inputs and outputs of a node → its work, in the unit of the family's rate.
Work: TypeAlias = Callable[[Mapping[str, Any], Sequence[Operand], Sequence[Operand]], float]


class Family(NamedTuple):
    """Ops of one kind: "product" or a name in `calibration.RATES`, how to count the work, and how much harder than the
    op by which the rate was measured.
    """

    rate: str
    work: Work
    factor: float = 1.0


def _moved(_: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    return sum([i.size for i in inputs]) + sum([o.size for o in outputs])


def _read(_: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    return sum([i.size for i in inputs])


def _written(_: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    return 2.0 * sum([o.size for o in outputs])


def _nothing(_: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    return 0.0


def _product(attrs: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Multiply-adds of a (batched) matrix product: each output element is a sum over the inner size."""
    left = inputs[0].dims
    transposed = attrs.get("transpose_a") or attrs.get("adj_x")
    inner = left[-2 if transposed else -1] if len(left) >= 2 else 1
    return float(outputs[0].elements * inner)


def _einsum(attrs: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Multiply-adds: the product of the sizes of all labels. An ellipsis counts by the output's size."""
    terms = str(attrs.get("equation", "")).partition("->")[0].replace(" ", "").split(",")
    sizes = {
        label: size
        for term, operand in zip(terms, inputs, strict=False)
        for label, size in zip(term, operand.dims, strict=False)
        if label != "."
    }
    return float(max(math.prod(sizes.values()), outputs[0].elements))


def _convolution(image: int, kernel: int) -> Work:
    """Multiply-adds where `image` is the operand with a value for each output position, and `kernel` the filter.

    Operands are counted through the inputs and then the outputs. A position and output channel costs the filter's
    elements a channel.
    """

    def work(_: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
        operands = [*inputs, *outputs]
        weights = operands[kernel].dims
        return float(operands[image].elements * math.prod(weights[:-1]))

    return work


def _depthwise(image: int, kernel: int) -> Work:
    """As `_convolution`, where each output channel reads one input channel."""

    def work(_: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
        operands = [*inputs, *outputs]
        weights = operands[kernel].dims
        return float(operands[image].elements * math.prod(weights[:2]))

    return work


def _fused_convolution(attrs: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    return float(outputs[0].elements * math.prod(inputs[1].dims[:-1]))


def _windows(attrs: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Bytes read by a pool: its window for every element of the smaller side."""
    window = math.prod(attrs.get("ksize", (1,)))
    return float(min([o.size for o in [*inputs[:1], *outputs] if o.size] or [0]) * window)


def _cubic(_: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Multiply-adds of a factorization: elements times the size of a side."""
    return float(inputs[0].elements * (inputs[0].dims[-1] if inputs[0].dims else 1))


def _chain(attrs: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """A fused chain reads and writes once, and computes each of its steps from the cache at half the price."""
    steps = attrs.get("ops", ())
    return _moved(attrs, inputs, outputs) * max(1.0, 0.5 * len(steps) if isinstance(steps, list | tuple) else 1.0)


# Names for something that exists already, and values that are known without computing.
_FREE: Final = """
_Arg _Retval _Hole Barrier Bitcast Const EnsureShape ExpandDims FIFOQueueV2 FixedLengthRecordReaderV2 Identity IdentityN
IdentityReaderV2 MutexV2 NoOp PaddingFIFOQueueV2 Placeholder PlaceholderWithDefault PreventGradient PriorityQueueV2
RandomShuffleQueueV2 Rank ReadVariableOp Reshape ResourceConditionalAccumulator Shape ShapeN Size
SparseConditionalAccumulator Squeeze StackV2 StopGradient TFRecordReaderV2 TensorArrayV3 TextLineReaderV2 VarHandleOp
VarIsInitializedOp VariableShape WholeFileReaderV2
"""
FREE_OPS: Final = CONTROL_FLOW | frozenset(_FREE.split())

# Sources of which every device that reads one has its own: nothing is sent from one device to another for them.
REPLICATED_OPS: Final = frozenset({"_Arg", "Const"})

# Whose outputs are in memory whether or not a step runs, and whose outputs are in the memory of their first input.
RESIDENT_OPS: Final = REPLICATED_OPS | {"VarHandleOp", "ReadVariableOp"}
SHARING_OPS: Final = (CONTROL_FLOW - {"ControlTrigger"}) | {
    "Bitcast",
    "EnsureShape",
    "ExpandDims",
    "Identity",
    "IdentityN",
    "PlaceholderWithDefault",
    "PreventGradient",
    "Reshape",
    "Squeeze",
    "StopGradient",
}

_ELEMENTWISE: Final = Family("elementwise", _moved)
_LIGHT: Final = Family("elementwise", _nothing)

_FAMILIES: Final[Mapping[str, Family]] = {
    # Views, and what only waits or counts.
    """
    Assert BarrierClose BarrierIncompleteSize BarrierReadySize BroadcastGradientArgs ConsumeMutexLock DestroyResourceOp
    EmptyTensorList MatchingFiles MutexLock Print PrintV2 QueueCloseV2 QueueDequeueManyV2 QueueDequeueUpToV2
    QueueDequeueV2 QueueEnqueueManyV2 QueueEnqueueV2 QueueIsClosedV2 QueueSizeV2 ResourceCountUpTo Slice Snapshot Split
    SplitV StackCloseV2 StackPopV2 StackPushV2 Stage StageClear StagePeek StageSize StridedSlice TensorArrayCloseV3
    TensorArrayGradV3 TensorArrayReadV3 TensorArraySizeV3 TensorArrayWriteV3 TensorListGetItem TensorListLength
    TensorListPopBack TensorListPushBack TensorListReserve TensorListResize TensorListSetItem Timestamp Unpack Unstage
    """: _LIGHT,
    """
    Acos Acosh Asin Asinh Atan Atan2 Atanh Cos Cosh Elu EluGrad Erf Erfc Erfinv Exp Expm1 Log Log1p Pow Selu SeluGrad
    Sigmoid Sin Sinh Softplus SoftplusGrad Tan Tanh Xlog1py Xlogy
    """: Family("transcendental", _moved),
    "Digamma Lgamma Ndtri Polygamma Zeta": Family("transcendental", _moved, 5.0),
    """
    LogSoftmax Softmax SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits SparseSoftmax
    """: Family("transcendental", _moved, 1.5),
    """
    Multinomial RandomGamma RandomPoissonV2 RandomShuffle RandomStandardNormal RandomUniform RandomUniformInt
    StatelessRandomNormal StatelessRandomUniform StatelessTruncatedNormal TruncatedNormal
    """: Family("transcendental", _written),
    "All Any ArgMax ArgMin BiasAddGrad EuclideanNorm L2Loss Max Mean Min Prod Sum": Family("reduction", _read),
    "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 LRN": Family("reduction", _read, 4.0),
    "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3 LRNGrad": Family("reduction", _read, 6.0),
    "Cumprod Cumsum Bincount HistogramFixedWidth": Family("reduction", _read, 4.0),
    "InTopK InTopKV2 ListDiff LowerBound NthElement TopK TopKV2 Unique UniqueV2 UniqueWithCounts UpperBound": Family(
        "reduction", _read, 20.0
    ),
    """
    AssignVariableOp BatchToSpaceND BroadcastTo Cast Concat ConcatV2 DepthToSpace Fill Gather GatherNd GatherV2
    MirrorPad OneHot OnesLike Pack Pad PadV2 Range ResourceGather ResourceGatherNd ReverseSequence ReverseV2 Roll
    SpaceToBatchND SpaceToDepth TensorArrayGatherV3 TensorListStack Tile Transpose Where ZerosLike
    """: Family("movement", _written),
    "MatMul BatchMatMul BatchMatMulV2 _FusedMatMul": Family("product", _product),
    "Einsum": Family("product", _einsum),
    """
    Cholesky CholeskyGrad LogMatrixDeterminant MatrixDeterminant MatrixInverse MatrixSolve MatrixTriangularSolve
    """: Family("product", _cubic, 4.0),
    "Qr SelfAdjointEigV2 Svd": Family("product", _cubic, 40.0),
    "Conv2D": Family("convolution", _convolution(2, 1)),
    "_FusedConv2D": Family("convolution", _fused_convolution),
    "Conv2DBackpropInput": Family("convolution", _convolution(2, 1)),
    "Conv2DBackpropFilter": Family("convolution", _convolution(2, 3)),
    "DepthwiseConv2dNative": Family("convolution", _depthwise(2, 1), 4.0),
    "DepthwiseConv2dNativeBackpropInput": Family("convolution", _depthwise(2, 1), 4.0),
    "DepthwiseConv2dNativeBackpropFilter": Family("convolution", _depthwise(2, 3), 4.0),
    "AvgPool AvgPoolGrad MaxPool MaxPoolGrad MaxPoolGradGrad": Family("elementwise", _windows),
    "_ElementwiseChain": Family("elementwise", _chain),
}


def _entries() -> Iterator[tuple[str, Family]]:
    for names, family in _FAMILIES.items():
        for name in names.split():
            yield name, family


_BY_OP: Final[Mapping[str, Family]] = dict(_entries())


def family_of(op: str) -> Family:
    """The family of an op that is not in `FREE_OPS`."""
    return _BY_OP.get(op, _ELEMENTWISE)
