"""Sparse tensors: the public namespace `aioflow.sparse`, after `tf.sparse` of the TensorFlow 1 API."""

from aioflow.loading.later import load_later as _load_later
from aioflow.ops.queues.accumulators import SparseConditionalAccumulator as SparseConditionalAccumulator
from aioflow.ops.sparse.cross import cross, cross_hashed
from aioflow.ops.sparse.dense import sparse_eye as eye
from aioflow.ops.sparse.dense import sparse_from_dense as from_dense
from aioflow.ops.sparse.dense import sparse_merge as merge
from aioflow.ops.sparse.dense import sparse_tensor_to_dense as to_dense
from aioflow.ops.sparse.dense import sparse_to_indicator as to_indicator
from aioflow.ops.sparse.forms import sparse_concat as concat
from aioflow.ops.sparse.forms import sparse_expand_dims as expand_dims
from aioflow.ops.sparse.forms import sparse_fill_empty_rows as fill_empty_rows
from aioflow.ops.sparse.forms import sparse_reorder as reorder
from aioflow.ops.sparse.forms import sparse_reset_shape as reset_shape
from aioflow.ops.sparse.forms import sparse_reshape as reshape
from aioflow.ops.sparse.forms import sparse_retain as retain
from aioflow.ops.sparse.forms import sparse_slice as slice
from aioflow.ops.sparse.forms import sparse_split as split
from aioflow.ops.sparse.forms import sparse_transpose as transpose
from aioflow.ops.sparse.indexed_slices import sparse_mask as mask
from aioflow.ops.sparse.math import sparse_add as add
from aioflow.ops.sparse.math import sparse_maximum as maximum
from aioflow.ops.sparse.math import sparse_minimum as minimum
from aioflow.ops.sparse.math import sparse_reduce_max as reduce_max
from aioflow.ops.sparse.math import sparse_reduce_max_sparse as reduce_max_sparse
from aioflow.ops.sparse.math import sparse_reduce_sum as reduce_sum
from aioflow.ops.sparse.math import sparse_reduce_sum_sparse as reduce_sum_sparse
from aioflow.ops.sparse.math import sparse_softmax as softmax
from aioflow.ops.sparse.math import sparse_tensor_dense_matmul as matmul
from aioflow.ops.sparse.math import sparse_tensor_dense_matmul as sparse_dense_matmul
from aioflow.ops.sparse.segment import sparse_segment_mean as segment_mean
from aioflow.ops.sparse.segment import sparse_segment_sqrt_n as segment_sqrt_n
from aioflow.ops.sparse.segment import sparse_segment_sum as segment_sum
from aioflow.ops.sparse.tensor import SparseTensor as SparseTensor
from aioflow.ops.sparse.tensor import sparse_placeholder as placeholder

__all__ = [
    "SparseConditionalAccumulator",
    "SparseTensor",
    "add",
    "concat",
    "cross",
    "cross_hashed",
    "expand_dims",
    "eye",
    "fill_empty_rows",
    "from_dense",
    "mask",
    "matmul",
    "maximum",
    "merge",
    "minimum",
    "placeholder",
    "reduce_max",
    "reduce_max_sparse",
    "reduce_sum",
    "reduce_sum_sparse",
    "reorder",
    "reset_shape",
    "reshape",
    "retain",
    "segment_mean",
    "segment_sqrt_n",
    "segment_sum",
    "slice",
    "softmax",
    "sparse_dense_matmul",
    "split",
    "to_dense",
    "to_indicator",
    "transpose",
]

_load_later(__name__)
