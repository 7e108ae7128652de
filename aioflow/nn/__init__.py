"""Neural network ops: the public namespace `aioflow.nn`, after `tf.nn` of the TensorFlow 1 API."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.loading.later import homes as _homes
from aioflow.loading.later import load_later as _load_later
from aioflow.ops.array.padding import depth_to_space, space_to_batch, space_to_depth
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
    swish,
)
from aioflow.ops.nn.any_rank import (
    atrous_conv2d_transpose,
    avg_pool1d,
    avg_pool_v2,
    conv1d,
    conv1d_transpose,
    conv_transpose,
    convolution,
    max_pool1d,
    max_pool_v2,
    pool,
    with_space_to_batch,
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
from aioflow.ops.nn.ctc import (
    collapse_repeated,
    ctc_beam_search_decoder,
    ctc_beam_search_decoder_v2,
    ctc_greedy_decoder,
    ctc_loss,
    ctc_loss_v2,
    ctc_unique_labels,
)
from aioflow.ops.nn.embeddings import embedding_lookup, embedding_lookup_sparse, safe_embedding_lookup_sparse
from aioflow.ops.nn.layers import dropout, relu_layer, xw_plus_b, zero_fraction
from aioflow.ops.nn.normalization import (
    batch_norm_with_global_normalization,
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

# ruff: noqa: TC004
if _TYPE_CHECKING:
    from aioflow.nn import rnn_cell as rnn_cell
    from aioflow.ops.rnn.dynamic import bidirectional_dynamic_rnn as bidirectional_dynamic_rnn
    from aioflow.ops.rnn.dynamic import dynamic_rnn as dynamic_rnn
    from aioflow.ops.rnn.dynamic import raw_rnn as raw_rnn
    from aioflow.ops.rnn.static import static_bidirectional_rnn as static_bidirectional_rnn
    from aioflow.ops.rnn.static import static_rnn as static_rnn
    from aioflow.ops.rnn.static import static_state_saving_rnn as static_state_saving_rnn

depthwise_conv2d_backprop_filter = depthwise_conv2d_native_backprop_filter
depthwise_conv2d_backprop_input = depthwise_conv2d_native_backprop_input
silu = swish

__all__ = [
    "atrous_conv2d",
    "atrous_conv2d_transpose",
    "avg_pool",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "avg_pool_v2",
    "batch_norm_with_global_normalization",
    "batch_normalization",
    "bias_add",
    "bidirectional_dynamic_rnn",
    "collapse_repeated",
    "conv1d",
    "conv1d_transpose",
    "conv2d",
    "conv2d_backprop_filter",
    "conv2d_backprop_input",
    "conv2d_transpose",
    "conv3d",
    "conv3d_backprop_filter",
    "conv3d_backprop_filter_v2",
    "conv3d_transpose",
    "conv_transpose",
    "convolution",
    "crelu",
    "ctc_beam_search_decoder",
    "ctc_beam_search_decoder_v2",
    "ctc_greedy_decoder",
    "ctc_loss",
    "ctc_loss_v2",
    "ctc_unique_labels",
    "depth_to_space",
    "depthwise_conv2d",
    "depthwise_conv2d_backprop_filter",
    "depthwise_conv2d_backprop_input",
    "depthwise_conv2d_native",
    "depthwise_conv2d_native_backprop_filter",
    "depthwise_conv2d_native_backprop_input",
    "dropout",
    "dynamic_rnn",
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
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_pool_v2",
    "max_pool_with_argmax",
    "moments",
    "normalize_moments",
    "pool",
    "raw_rnn",
    "relu",
    "relu6",
    "relu_layer",
    "safe_embedding_lookup_sparse",
    "selu",
    "separable_conv2d",
    "sigmoid",
    "sigmoid_cross_entropy_with_logits",
    "silu",
    "softmax",
    "softmax_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits_v2",
    "softplus",
    "softsign",
    "space_to_batch",
    "space_to_depth",
    "sparse_softmax_cross_entropy_with_logits",
    "static_bidirectional_rnn",
    "static_rnn",
    "static_state_saving_rnn",
    "sufficient_statistics",
    "swish",
    "tanh",
    "top_k",
    "weighted_cross_entropy_with_logits",
    "weighted_moments",
    "with_space_to_batch",
    "xw_plus_b",
    "zero_fraction",
]

# Loaded with the first use: few programs have recurrent nets.
_RECURRENT = _homes(
    {
        "aioflow.nn.rnn_cell": "rnn_cell",
        "aioflow.ops.rnn.dynamic": "bidirectional_dynamic_rnn dynamic_rnn raw_rnn",
        "aioflow.ops.rnn.static": "static_bidirectional_rnn static_rnn static_state_saving_rnn",
    }
)

_load_later(__name__, _RECURRENT)
