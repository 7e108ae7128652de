"""The public builders of all families, under TensorFlow 1's names, with the module that defines each.

The first use of a name imports its module. tests/test_public_names.py checks each row against the `__all__` of its
module, which type checkers read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Final

from aioflow.loading.later import homes as _homes
from aioflow.loading.later import load_later as _load_later

if _TYPE_CHECKING:
    from aioflow.ops.array.diagonals import *
    from aioflow.ops.array.indexing import *
    from aioflow.ops.array.joining import *
    from aioflow.ops.array.making import *
    from aioflow.ops.array.order import *
    from aioflow.ops.array.padding import *
    from aioflow.ops.array.selection import *
    from aioflow.ops.array.shape import *
    from aioflow.ops.array.slices import *
    from aioflow.ops.array.tensor_array import *
    from aioflow.ops.batching import *
    from aioflow.ops.control.assertions import *
    from aioflow.ops.control.branches_and_loops import *
    from aioflow.ops.control.critical_section import *
    from aioflow.ops.control.functional import *
    from aioflow.ops.control.primitives import *
    from aioflow.ops.core import *
    from aioflow.ops.function.functional import *
    from aioflow.ops.function.py_func import *
    from aioflow.ops.function.tracing import *
    from aioflow.ops.importer import *
    from aioflow.ops.io.example_features import *
    from aioflow.ops.io.files import *
    from aioflow.ops.io.parsing import *
    from aioflow.ops.io.readers import *
    from aioflow.ops.io.serialization import *
    from aioflow.ops.linalg.decompositions import *
    from aioflow.ops.linalg.norms import *
    from aioflow.ops.linalg.products import *
    from aioflow.ops.linalg.tensordot import *
    from aioflow.ops.lookup.initializers import *
    from aioflow.ops.math.arithmetic import *
    from aioflow.ops.math.broadcasting import *
    from aioflow.ops.math.clip import *
    from aioflow.ops.math.comparison import *
    from aioflow.ops.math.complex import *
    from aioflow.ops.math.division import *
    from aioflow.ops.math.fourier import *
    from aioflow.ops.math.random import *
    from aioflow.ops.math.reduction import *
    from aioflow.ops.math.segment import *
    from aioflow.ops.math.sorting import *
    from aioflow.ops.math.special import *
    from aioflow.ops.math.sums import *
    from aioflow.ops.math.unary import *
    from aioflow.ops.queues.accumulators import *
    from aioflow.ops.queues.barrier import *
    from aioflow.ops.queues.queues import *
    from aioflow.ops.queues.staging import *
    from aioflow.ops.scoping import *
    from aioflow.ops.session_tensors import *
    from aioflow.ops.sparse.dense import *
    from aioflow.ops.sparse.forms import *
    from aioflow.ops.sparse.indexed_slices import *
    from aioflow.ops.sparse.math import *
    from aioflow.ops.sparse.segment import *
    from aioflow.ops.sparse.tensor import *
    from aioflow.ops.static import *
    from aioflow.ops.text.forms import *
    from aioflow.ops.text.strings import *
    from aioflow.ops.variables.collections import *
    from aioflow.ops.variables.getting import *
    from aioflow.ops.variables.initializers import *
    from aioflow.ops.variables.partitioned import *
    from aioflow.ops.variables.partitioners import *
    from aioflow.ops.variables.replicas import *
    from aioflow.ops.variables.scope import *
    from aioflow.ops.variables.template import *
    from aioflow.ops.variables.update_functions import *
    from aioflow.ops.variables.variable import *

_BUILDERS: Final[Mapping[str, str]] = _homes(
    {
        "aioflow.ops.array.diagonals": "diag diag_part matrix_band_part matrix_diag matrix_diag_part matrix_set_diag",
        "aioflow.ops.array.indexing": (
            "batch_gather gather gather_nd scatter_nd tensor_scatter_add tensor_scatter_nd_add tensor_scatter_nd_max "
            "tensor_scatter_nd_min tensor_scatter_nd_sub tensor_scatter_nd_update tensor_scatter_sub "
            "tensor_scatter_update"
        ),
        "aioflow.ops.array.joining": "concat parallel_stack repeat split stack tile unstack",
        "aioflow.ops.array.making": (
            "fill lin_space linspace meshgrid one_hot ones ones_like range sequence_mask timestamp zeros zeros_like"
        ),
        "aioflow.ops.array.order": (
            "dynamic_partition dynamic_stitch invert_permutation reverse reverse_sequence reverse_v2 roll searchsorted "
            "setdiff1d unique unique_with_counts unravel_index"
        ),
        "aioflow.ops.array.padding": (
            "batch_to_space batch_to_space_nd depth_to_space pad required_space_to_batch_paddings space_to_batch "
            "space_to_batch_nd space_to_depth"
        ),
        "aioflow.ops.array.selection": "boolean_mask where where_v2",
        "aioflow.ops.array.shape": (
            "bitcast broadcast_to ensure_shape expand_dims matrix_transpose rank reshape shape shape_n size squeeze "
            "transpose"
        ),
        "aioflow.ops.array.slices": "newaxis slice strided_slice",
        "aioflow.ops.array.tensor_array": "TensorArray",
        "aioflow.ops.batching": "nondifferentiable_batch_function",
        "aioflow.ops.control.assertions": (
            "assert_equal assert_greater assert_greater_equal assert_integer assert_less assert_less_equal assert_near "
            "assert_negative assert_non_negative assert_non_positive assert_none_equal assert_positive "
            "assert_proper_iterable assert_rank assert_rank_at_least assert_rank_in assert_same_float_dtype "
            "assert_scalar assert_type get_static_value is_non_decreasing is_numeric_tensor is_strictly_increasing"
        ),
        "aioflow.ops.control.branches_and_loops": "case cond switch_case while_loop",
        "aioflow.ops.control.critical_section": "CriticalSection",
        "aioflow.ops.control.functional": "foldl foldr map_fn scan",
        "aioflow.ops.control.primitives": "Assert Print",
        "aioflow.ops.core": "group identity identity_n no_op placeholder placeholder_with_default stop_gradient",
        "aioflow.ops.function.functional": "Case For If PartitionedCall While",
        "aioflow.ops.function.py_func": "from_async_iterator numpy_function py_coroutine py_func",
        "aioflow.ops.function.tracing": "ConcreteFunction PolymorphicFunction TensorSpec function",
        "aioflow.ops.importer": "import_graph_def",
        "aioflow.ops.io.example_features": "FixedLenFeature FixedLenSequenceFeature SparseFeature VarLenFeature",
        "aioflow.ops.io.files": "matching_files read_file write_file",
        "aioflow.ops.io.parsing": (
            "decode_csv decode_raw parse_example parse_single_example parse_single_sequence_example"
        ),
        "aioflow.ops.io.readers": (
            "FixedLengthRecordReader IdentityReader ReaderBase TFRecordReader TextLineReader WholeFileReader"
        ),
        "aioflow.ops.io.serialization": (
            "deserialize_many_sparse parse_tensor serialize_many_sparse serialize_sparse serialize_tensor"
        ),
        "aioflow.ops.linalg.decompositions": (
            "cholesky cholesky_solve matrix_determinant matrix_inverse matrix_solve matrix_triangular_solve qr "
            "self_adjoint_eig self_adjoint_eigvals svd"
        ),
        "aioflow.ops.linalg.norms": "eye norm trace",
        "aioflow.ops.linalg.products": "cross einsum matmul",
        "aioflow.ops.linalg.tensordot": "tensordot",
        "aioflow.ops.lookup.initializers": "initialize_all_tables tables_initializer",
        "aioflow.ops.math.arithmetic": "add atan2 maximum minimum multiply pow squared_difference subtract",
        "aioflow.ops.math.broadcasting": "broadcast_dynamic_shape broadcast_static_shape",
        "aioflow.ops.math.clip": "clip_by_average_norm clip_by_global_norm clip_by_norm global_norm",
        "aioflow.ops.math.comparison": (
            "check_numerics equal greater greater_equal is_finite is_inf is_nan less less_equal logical_and "
            "logical_not logical_or logical_xor not_equal verify_tensor_all_finite"
        ),
        "aioflow.ops.math.complex": (
            "abs angle cast complex conj imag real saturate_cast to_bfloat16 to_complex64 to_complex128 to_double "
            "to_float to_int32 to_int64"
        ),
        "aioflow.ops.math.division": (
            "div div_no_nan divide floor_div floordiv floormod mod realdiv truediv truncatediv truncatemod"
        ),
        "aioflow.ops.math.fourier": "fft fft2d fft3d ifft ifft2d ifft3d",
        "aioflow.ops.math.random": (
            "get_seed multinomial random_crop random_gamma random_normal random_poisson random_shuffle random_uniform "
            "set_random_seed truncated_normal"
        ),
        "aioflow.ops.math.reduction": (
            "count_nonzero cumprod cumsum reduce_all reduce_any reduce_logsumexp reduce_max reduce_mean reduce_min "
            "reduce_prod reduce_sum"
        ),
        "aioflow.ops.math.segment": (
            "segment_max segment_mean segment_min segment_prod segment_sum unsorted_segment_max unsorted_segment_mean "
            "unsorted_segment_min unsorted_segment_prod unsorted_segment_sqrt_n unsorted_segment_sum"
        ),
        "aioflow.ops.math.sorting": (
            "arg_max arg_min argmax argmin argsort bincount confusion_matrix histogram_fixed_width "
            "histogram_fixed_width_bins sort"
        ),
        "aioflow.ops.math.special": "betainc digamma erf erfc igamma igammac lbeta lgamma polygamma zeta",
        "aioflow.ops.math.sums": "accumulate_n add_n clip_by_value scalar_mul",
        "aioflow.ops.math.unary": (
            "acos acosh asin asinh atan atanh ceil cos cosh exp expm1 floor log log1p log_sigmoid negative reciprocal "
            "rint round rsqrt sigmoid sign sin sinh sqrt square tan tanh"
        ),
        "aioflow.ops.queues.accumulators": (
            "ConditionalAccumulator ConditionalAccumulatorBase SparseConditionalAccumulator"
        ),
        "aioflow.ops.queues.barrier": "Barrier",
        "aioflow.ops.queues.queues": "FIFOQueue PaddingFIFOQueue PriorityQueue QueueBase RandomShuffleQueue",
        "aioflow.ops.queues.staging": "StagingArea",
        "aioflow.ops.scoping": (
            "add_to_collection add_to_collections colocate_with container control_dependencies device get_collection "
            "get_collection_ref init_scope name_scope op_scope"
        ),
        "aioflow.ops.session_tensors": "delete_session_tensor get_session_handle get_session_tensor",
        "aioflow.ops.sparse.dense": "sparse_merge sparse_tensor_to_dense sparse_to_dense sparse_to_indicator",
        "aioflow.ops.sparse.forms": (
            "sparse_concat sparse_fill_empty_rows sparse_reorder sparse_reset_shape sparse_reshape sparse_retain "
            "sparse_slice sparse_split sparse_transpose"
        ),
        "aioflow.ops.sparse.indexed_slices": "sparse_mask",
        "aioflow.ops.sparse.math": (
            "sparse_add sparse_maximum sparse_minimum sparse_reduce_max sparse_reduce_max_sparse sparse_reduce_sum "
            "sparse_reduce_sum_sparse sparse_softmax sparse_tensor_dense_matmul"
        ),
        "aioflow.ops.sparse.segment": "sparse_segment_mean sparse_segment_sqrt_n sparse_segment_sum",
        "aioflow.ops.sparse.tensor": (
            "SparseTensor SparseTensorValue convert_to_tensor_or_sparse_tensor sparse_placeholder"
        ),
        "aioflow.ops.static": "is_tensor",
        "aioflow.ops.text.forms": (
            "decode_base64 encode_base64 reduce_join regex_replace string_split string_strip string_to_hash_bucket "
            "string_to_hash_bucket_fast string_to_hash_bucket_strong"
        ),
        "aioflow.ops.text.strings": "as_string string_join string_to_number substr",
        "aioflow.ops.variables.collections": (
            "all_variables assert_variables_initialized global_variables global_variables_initializer "
            "initialize_all_variables initialize_local_variables initialize_variables local_variables "
            "local_variables_initializer model_variables moving_average_variables report_uninitialized_variables "
            "trainable_variables variables_initializer"
        ),
        "aioflow.ops.variables.getting": "create_partitioned_variables get_local_variable get_variable",
        "aioflow.ops.variables.initializers": (
            "constant_initializer glorot_normal_initializer glorot_uniform_initializer ones_initializer "
            "orthogonal_initializer random_normal_initializer random_uniform_initializer truncated_normal_initializer "
            "uniform_unit_scaling_initializer variance_scaling_initializer zeros_initializer"
        ),
        "aioflow.ops.variables.partitioned": "PartitionedVariable",
        "aioflow.ops.variables.partitioners": (
            "fixed_size_partitioner min_max_variable_partitioner variable_axis_size_partitioner"
        ),
        "aioflow.ops.variables.replicas": "VariableAggregation VariableSynchronization",
        "aioflow.ops.variables.scope": "AUTO_REUSE VariableScope get_variable_scope variable_op_scope variable_scope",
        "aioflow.ops.variables.template": "make_template",
        "aioflow.ops.variables.update_functions": (
            "assign assign_add assign_sub batch_scatter_update count_up_to is_variable_initialized scatter_add "
            "scatter_div scatter_max scatter_min scatter_mul scatter_nd_add scatter_nd_sub scatter_nd_update "
            "scatter_sub scatter_update"
        ),
        "aioflow.ops.variables.variable": "Variable",
    }
)

_load_later(__name__, _BUILDERS)
