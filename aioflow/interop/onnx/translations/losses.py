"""Classification losses, of log-probabilities and of scores."""

from __future__ import annotations

from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.sizes import rank_of
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.interop.onnx.translations.dimensions import size_of
from aioflow.interop.onnx.translations.normalization import along_axis
from aioflow.ops.apply import make
from aioflow.ops.array.making import one_hot
from aioflow.ops.math.reduction import reduce_mean, reduce_sum


@translation("NegativeLogLikelihoodLoss")
def negative_log_likelihood(node: OnnxNode, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    return _likelihood_loss(node, x, target, weight)


@translation("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(
    node: OnnxNode, scores: Tensor, labels: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    log_prob = along_axis("LogSoftmax", node, scores, 1)
    return _likelihood_loss(node, log_prob, labels, weights), log_prob


def _likelihood_loss(node: OnnxNode, x: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    """Return minus the target's entry along axis 1 times the weight of its class, or 0 for an ignored target.

    The node's `reduction` applies. A mean is weighted by the weights of the classes and skips ignored targets.
    """
    reduction, ignored = node.attr("reduction", "mean"), node.attr("ignore_index")
    hits = one_hot(target, size_of(x, 1), True, False, axis=1)
    if ignored is not None:
        hits = make("LogicalAnd", hits, make("ExpandDims", make("NotEqual", target, ignored), 1))
    share = make("Cast", hits, DstT=x.dtype)
    if weight is not None:
        share = share * make("Reshape", weight, [1, -1] + [1] * (rank_of(node, x) - 2))
    # Entries of other classes may be infinite, and infinity times a share of 0 would be NaN.
    loss = make("Neg", reduce_sum(make("SelectV2", hits, x, 0) * share, 1))
    if reduction == "none":
        return loss
    if reduction == "sum":
        return reduce_sum(loss)
    if weight is None and ignored is None:
        return reduce_mean(loss)
    return reduce_sum(loss) / reduce_sum(share)
