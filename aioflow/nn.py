"""Neural network ops: the public namespace `aioflow.nn`, after `tf.nn` of the TensorFlow 1 API."""

from aioflow.loading.later import load_later as _load_later
from aioflow.ops.math.sorting import in_top_k, top_k
from aioflow.ops.math.unary import sigmoid, tanh
from aioflow.ops.nn.activations import (
    bias_add,
    crelu,
    elu,
    l2_loss,
    leaky_relu,
    log_softmax,
    relu,
    relu6,
    selu,
    softmax,
    softplus,
    softsign,
)
from aioflow.ops.nn.convolution import (
    atrous_conv2d,
    conv2d,
    conv2d_backprop_filter,
    conv2d_backprop_input,
    conv2d_transpose,
    depthwise_conv2d,
    depthwise_conv2d_native,
    depthwise_conv2d_native_backprop_filter,
    depthwise_conv2d_native_backprop_input,
    separable_conv2d,
)
from aioflow.ops.nn.cross_entropy import (
    log_poisson_loss,
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits_v2,
    sparse_softmax_cross_entropy_with_logits,
    weighted_cross_entropy_with_logits,
)
from aioflow.ops.nn.embeddings import embedding_lookup, embedding_lookup_sparse, safe_embedding_lookup_sparse
from aioflow.ops.nn.layers import dropout, relu_layer, xw_plus_b, zero_fraction
from aioflow.ops.nn.normalization import (
    batch_normalization,
    fused_batch_norm,
    l2_normalize,
    local_response_normalization,
    lrn,
    moments,
    normalize_moments,
    sufficient_statistics,
    weighted_moments,
)
from aioflow.ops.nn.pooling import avg_pool, avg_pool2d, max_pool, max_pool2d, max_pool_with_argmax
from aioflow.ops.nn.volumes import avg_pool3d, conv3d, conv3d_backprop_filter_v2, conv3d_transpose, max_pool3d
from aioflow.ops.nn.volumes import conv3d_backprop_filter_v2 as conv3d_backprop_filter

__all__ = [
    "atrous_conv2d",
    "avg_pool",
    "avg_pool2d",
    "avg_pool3d",
    "batch_normalization",
    "bias_add",
    "conv2d",
    "conv2d_backprop_filter",
    "conv2d_backprop_input",
    "conv2d_transpose",
    "conv3d",
    "conv3d_backprop_filter",
    "conv3d_backprop_filter_v2",
    "conv3d_transpose",
    "crelu",
    "depthwise_conv2d",
    "depthwise_conv2d_native",
    "depthwise_conv2d_native_backprop_filter",
    "depthwise_conv2d_native_backprop_input",
    "dropout",
    "elu",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "fused_batch_norm",
    "in_top_k",
    "l2_loss",
    "l2_normalize",
    "leaky_relu",
    "local_response_normalization",
    "log_poisson_loss",
    "log_softmax",
    "lrn",
    "max_pool",
    "max_pool2d",
    "max_pool3d",
    "max_pool_with_argmax",
    "moments",
    "normalize_moments",
    "relu",
    "relu6",
    "relu_layer",
    "safe_embedding_lookup_sparse",
    "selu",
    "separable_conv2d",
    "sigmoid",
    "sigmoid_cross_entropy_with_logits",
    "softmax",
    "softmax_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits_v2",
    "softplus",
    "softsign",
    "sparse_softmax_cross_entropy_with_logits",
    "sufficient_statistics",
    "tanh",
    "top_k",
    "weighted_cross_entropy_with_logits",
    "weighted_moments",
    "xw_plus_b",
    "zero_fraction",
]

_load_later(__name__)
