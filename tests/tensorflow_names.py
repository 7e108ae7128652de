"""TensorFlow 1 names that aioflow offers, with their arguments in TensorFlow's order: part of the public interface.

A line without parentheses is a name whose arguments are not compared (constants, enumerations, modules). A name that
aioflow adds later is added here. Removing a name from aioflow fails tests/test_public_names.py.
"""

from __future__ import annotations

from typing import Final

NAMES: Final[dict[str, str]] = {
    "": """
abs(x, name)
accumulate_n(inputs, shape, tensor_dtype, name)
acos(x, name)
acosh(x, name)
add(x, y, name)
add_n(inputs, name)
add_to_collection(name, value)
add_to_collections(names, value)
AggregationMethod
all_variables()
angle(input, name)
arg_max(input, dimension, output_type, name)
arg_min(input, dimension, output_type, name)
argmax(input, axis, name, dimension, output_type)
argmin(input, axis, name, dimension, output_type)
argsort(values, axis, direction, stable, name)
as_dtype(type_value)
as_string(input, precision, scientific, shortest, width, fill, name)
asin(x, name)
asinh(x, name)
Assert(condition, data, summarize, name)
assert_equal(x, y, data, summarize, message, name)
assert_greater(x, y, data, summarize, message, name)
assert_greater_equal(x, y, data, summarize, message, name)
assert_integer(x, message, name)
assert_less(x, y, data, summarize, message, name)
assert_less_equal(x, y, data, summarize, message, name)
assert_near(x, y, rtol, atol, data, summarize, message, name)
assert_negative(x, data, summarize, message, name)
assert_non_negative(x, data, summarize, message, name)
assert_non_positive(x, data, summarize, message, name)
assert_none_equal(x, y, data, summarize, message, name)
assert_positive(x, data, summarize, message, name)
assert_proper_iterable(values)
assert_rank(x, rank, data, summarize, message, name)
assert_rank_at_least(x, rank, data, summarize, message, name)
assert_rank_in(x, ranks, data, summarize, message, name)
assert_same_float_dtype(tensors, dtype)
assert_scalar(tensor, name, message)
assert_type(tensor, tf_type, message, name)
assert_variables_initialized(var_list)
assign(ref, value, validate_shape, use_locking, name)
assign_add(ref, value, use_locking, name)
assign_sub(ref, value, use_locking, name)
batch_scatter_update(ref, indices, updates, use_locking, name)
atan(x, name)
atan2(y, x, name)
atanh(x, name)
AUTO_REUSE
batch_gather(params, indices, name)
batch_to_space(input, crops, block_size, name, block_shape)
batch_to_space_nd(input, block_shape, crops, name)
bfloat16
betainc(a, b, x, name)
bincount(arr, weights, minlength, maxlength, dtype)
bitcast(input, type, name)
bool
boolean_mask(tensor, mask, name, axis)
broadcast_dynamic_shape(shape_x, shape_y)
broadcast_static_shape(shape_x, shape_y)
broadcast_to(input, shape, name)
case(pred_fn_pairs, default, exclusive, strict, name)
cast(x, dtype, name)
ceil(x, name)
check_numerics(tensor, message, name)
cholesky(input, name)
cholesky_solve(chol, rhs, name)
clip_by_average_norm(t, clip_norm, name)
clip_by_global_norm(t_list, clip_norm, use_norm, name)
clip_by_norm(t, clip_norm, axes, name)
clip_by_value(t, clip_value_min, clip_value_max, name)
colocate_with(op, ignore_existing)
complex(real, imag, name)
complex128
complex64
concat(values, axis, name)
cond(pred, true_fn, false_fn, strict, name, fn1, fn2)
ConditionalAccumulator(dtype, shape, shared_name, name, reduction_type)
ConditionalAccumulatorBase(dtype, shape, accumulator_ref)
ConfigProto
confusion_matrix(labels, predictions, num_classes, dtype, name, weights)
conj(x, name)
constant(value, dtype, shape, name, verify_shape)
constant_initializer(value, dtype, verify_shape)
container(container_name)
control_dependencies(control_inputs)
convert_to_tensor(value, dtype, name, preferred_dtype, dtype_hint)
convert_to_tensor_or_indexed_slices(value, dtype, name)
convert_to_tensor_or_sparse_tensor(value, dtype, name)
cos(x, name)
cosh(x, name)
count_nonzero(input_tensor, axis, keepdims, dtype, name, reduction_indices, keep_dims, input)
count_up_to(ref, limit, name)
CriticalSection(name, shared_name, critical_section_def, import_scope)
create_partitioned_variables(shape, slicing, initializer, dtype, trainable, collections, name, reuse)
cross(a, b, name)
cumprod(x, axis, exclusive, reverse, name)
cumsum(x, axis, exclusive, reverse, name)
custom_gradient(f)
decode_base64(input, name)
decode_csv(records, record_defaults, field_delim, use_quote_delim, name, na_value, select_cols)
decode_raw(input_bytes, out_type, little_endian, name, bytes)
delete_session_tensor(handle, name)
depth_to_space(input, block_size, name, data_format)
deserialize_many_sparse(serialized_sparse, dtype, rank, name)
device(device_name_or_function)
DeviceSpec(job, replica, task, device_type, device_index)
diag(diagonal, name)
diag_part(input, name)
digamma(x, name)
Dimension(value)
div(x, y, name)
div_no_nan(x, y, name)
divide(x, y, name)
double
DType(type_enum, handle_data)
dynamic_partition(data, partitions, num_partitions, name)
dynamic_stitch(indices, data, name)
einsum(equation, *inputs)
encode_base64(input, pad, name)
ensure_shape(x, shape, name)
equal(x, y, name)
erf(x, name)
erfc(x, name)
Event
exp(x, name)
expand_dims(input, axis, name, dim)
expm1(x, name)
eye(num_rows, num_columns, batch_shape, dtype, name)
fft(input, name)
fft2d(input, name)
fft3d(input, name)
FIFOQueue(capacity, dtypes, shapes, names, shared_name, name)
fill(dims, value, name, layout)
fixed_size_partitioner(num_shards, axis)
FixedLenFeature
FixedLengthRecordReader(record_bytes, header_bytes, footer_bytes, hop_bytes, name, encoding)
FixedLenSequenceFeature
float16
float32
float64
floor(x, name)
floor_div(x, y, name)
floordiv(x, y, name)
floormod(x, y, name)
foldl(fn, elems, initializer, parallel_iterations, back_prop, swap_memory, name)
foldr(fn, elems, initializer, parallel_iterations, back_prop, swap_memory, name)
gather(params, indices, validate_indices, name, axis, batch_dims)
gather_nd(params, indices, name, batch_dims, bad_indices_policy)
get_collection(key, scope)
get_collection_ref(key)
get_default_graph()
get_default_session()
get_local_variable(name, shape, dtype, initializer, regularizer, trainable, collections, caching_device,
    partitioner, validate_shape, use_resource, custom_getter, constraint, synchronization, aggregation)
get_logger()
get_seed(op_seed)
get_session_handle(data, name)
get_session_tensor(handle, dtype, name)
get_static_value(tensor, partial)
get_variable(name, shape, dtype, initializer, regularizer, trainable, collections, caching_device, partitioner,
    validate_shape, use_resource, custom_getter, constraint, synchronization, aggregation)
get_variable_scope()
global_norm(t_list, name)
global_variables(scope)
global_variables_initializer()
glorot_normal_initializer(seed, dtype)
glorot_uniform_initializer(seed, dtype)
grad_pass_through(f)
GPUOptions
gradients(ys, xs, grad_ys, name, colocate_gradients_with_ops, gate_gradients, aggregation_method,
    stop_gradients, unconnected_gradients)
Graph()
GraphDef
GraphKeys
GraphOptions
greater(x, y, name)
greater_equal(x, y, name)
group(*inputs)
half
hessians(ys, xs, name, colocate_gradients_with_ops, gate_gradients, aggregation_method)
histogram_fixed_width(values, value_range, nbins, dtype, name)
histogram_fixed_width_bins(values, value_range, nbins, dtype, name)
AttrValue
HistogramProto
identity(input, name)
identity_n(input, name)
IdentityReader(name)
igamma(a, x, name)
igammac(a, x, name)
ifft(input, name)
ifft2d(input, name)
ifft3d(input, name)
imag(input, name)
import_graph_def(graph_def, input_map, return_elements, name, op_dict, producer_op_list)
IndexedSlices(values, indices, dense_shape)
init_scope()
initialize_all_tables(name)
initialize_all_variables()
initialize_local_variables()
initialize_variables(var_list, name)
int16
int32
int64
int8
InteractiveSession(target, graph, config)
invert_permutation(x, name)
is_finite(x, name)
is_inf(x, name)
is_nan(x, name)
is_non_decreasing(x, name)
is_numeric_tensor(tensor)
is_strictly_increasing(x, name)
is_tensor(x)
is_variable_initialized(variable)
lbeta(x, name)
less(x, y, name)
less_equal(x, y, name)
lgamma(x, name)
lin_space(start, stop, num, name, axis)
linspace(start, stop, num, name, axis)
local_variables(scope)
local_variables_initializer()
log(x, name)
log1p(x, name)
log_sigmoid(x, name)
logical_and(x, y, name)
logical_not(x, name)
logical_or(x, y, name)
logical_xor(x, y, name)
LogMessage
make_ndarray(tensor)
make_template(name_, func_, create_scope_now_, unique_name_, custom_getter_, **kwargs)
make_tensor_proto(values, dtype, shape, verify_shape, allow_broadcast)
map_fn(fn, elems, dtype, parallel_iterations, back_prop, swap_memory, infer_shape, name, fn_output_signature)
matching_files(pattern, name)
matmul(a, b, transpose_a, transpose_b, adjoint_a, adjoint_b, a_is_sparse, b_is_sparse, output_type, grad_a,
    grad_b, name)
matrix_band_part(input, num_lower, num_upper, name)
matrix_determinant(input, name)
matrix_diag(diagonal, name, k, num_rows, num_cols, padding_value, align)
matrix_diag_part(input, name, k, padding_value, align)
matrix_inverse(input, adjoint, name)
matrix_set_diag(input, diagonal, name, k, align)
matrix_solve(matrix, rhs, adjoint, name)
matrix_transpose(a, name, conjugate)
matrix_triangular_solve(matrix, rhs, lower, adjoint, name)
maximum(x, y, name)
meshgrid
MetaGraphDef
NameAttrList
min_max_variable_partitioner(max_partitions, axis, min_slice_size, bytes_per_string_element)
minimum(x, y, name)
mod(x, y, name)
model_variables(scope)
moving_average_variables(scope)
multinomial(logits, num_samples, seed, name, output_dtype)
multiply(x, y, name)
name_scope(name, default_name, values)
negative(x, name)
newaxis
no_gradient(op_type)
no_op(name)
NodeDef
nondifferentiable_batch_function(num_batch_threads, max_batch_size, batch_timeout_micros, allowed_batch_sizes, max_enqueued_batches, autograph, enable_large_batch_splitting)
NoGradient(op_type)
norm(tensor, ord, axis, keepdims, name, keep_dims)
not_equal(x, y, name)
NotDifferentiable(op_type)
numpy_function(func, inp, Tout, stateful, name)
one_hot(indices, depth, on_value, off_value, axis, dtype, name)
ones(shape, dtype, name, layout)
ones_initializer(dtype)
ones_like(tensor, dtype, name, optimize)
op_scope(values, name, default_name)
Operation
OpError
OptimizerOptions
orthogonal_initializer(gain, seed, dtype)
pad(tensor, paddings, mode, name, constant_values)
PaddingFIFOQueue(capacity, dtypes, shapes, names, shared_name, name)
parallel_stack(values, name)
parse_example(serialized, features, name, example_names)
parse_single_example(serialized, features, name, example_names)
parse_single_sequence_example(serialized, context_features, sequence_features, example_name, name)
parse_tensor(serialized, out_type, name)
placeholder(dtype, shape, name)
placeholder_with_default(input, shape, name)
polygamma(a, x, name)
pow(x, y, name)
Print(input_, data, message, first_n, summarize, name)
PriorityQueue(capacity, types, shapes, names, shared_name, name)
py_func(func, inp, Tout, stateful, name)
qr(input, full_matrices, name)
QueueBase(dtypes, shapes, names, queue_ref)
random_crop(value, size, seed, name)
random_gamma(shape, alpha, beta, dtype, seed, name)
random_normal(shape, mean, stddev, dtype, seed, name)
random_normal_initializer(mean, stddev, seed, dtype)
random_poisson(lam, shape, dtype, seed, name)
random_shuffle(value, seed, name)
random_uniform(shape, minval, maxval, dtype, seed, name)
random_uniform_initializer(minval, maxval, seed, dtype)
RandomShuffleQueue(capacity, min_after_dequeue, dtypes, shapes, names, seed, shared_name, name)
range(start, limit, delta, dtype, name)
rank(input, name)
read_file(filename, name)
ReaderBase(reader_ref, supports_serialize)
real(input, name)
realdiv(x, y, name)
reciprocal(x, name)
recompute_grad(f)
reduce_all(input_tensor, axis, keepdims, name, reduction_indices, keep_dims)
reduce_any(input_tensor, axis, keepdims, name, reduction_indices, keep_dims)
reduce_join(inputs, axis, keep_dims, separator, name, reduction_indices, keepdims)
reduce_logsumexp(input_tensor, axis, keepdims, name, reduction_indices, keep_dims)
reduce_max(input_tensor, axis, keepdims, name, reduction_indices, keep_dims)
reduce_mean(input_tensor, axis, keepdims, name, reduction_indices, keep_dims)
reduce_min(input_tensor, axis, keepdims, name, reduction_indices, keep_dims)
reduce_prod(input_tensor, axis, keepdims, name, reduction_indices, keep_dims)
reduce_sum(input_tensor, axis, keepdims, name, reduction_indices, keep_dims)
regex_replace(input, pattern, rewrite, replace_global, name)
register_tensor_conversion_function(base_type, conversion_func, priority)
RegisterGradient(op_type)
repeat(input, repeats, axis, name)
report_uninitialized_variables(var_list, name)
required_space_to_batch_paddings(input_shape, block_shape, base_paddings, name)
reset_default_graph()
reshape(tensor, shape, name)
resource
reverse(tensor, axis, name)
reverse_sequence(input, seq_lengths, seq_axis, batch_axis, name, seq_dim, batch_dim)
reverse_v2(tensor, axis, name)
rint(x, name)
roll(input, shift, axis, name)
round(x, name)
rsqrt(x, name)
RunMetadata
RunOptions
saturate_cast(value, dtype, name)
scalar_mul(scalar, x, name)
scan(fn, elems, initializer, parallel_iterations, back_prop, swap_memory, infer_shape, reverse, name)
scatter_add(ref, indices, updates, use_locking, name)
scatter_div(ref, indices, updates, use_locking, name)
scatter_max(ref, indices, updates, use_locking, name)
scatter_min(ref, indices, updates, use_locking, name)
scatter_mul(ref, indices, updates, use_locking, name)
scatter_nd(indices, updates, shape, bad_indices_policy, name)
scatter_nd_add(ref, indices, updates, use_locking, name)
scatter_nd_sub(ref, indices, updates, use_locking, name)
scatter_nd_update(ref, indices, updates, use_locking, name)
scatter_sub(ref, indices, updates, use_locking, name)
scatter_update(ref, indices, updates, use_locking, name)
searchsorted(sorted_sequence, values, side, out_type, name)
segment_max(data, segment_ids, name)
segment_mean(data, segment_ids, name)
segment_min(data, segment_ids, name)
segment_prod(data, segment_ids, name)
segment_sum(data, segment_ids, name)
self_adjoint_eig(tensor, name)
self_adjoint_eigvals(tensor, name)
sequence_mask(lengths, maxlen, dtype, name)
serialize_many_sparse(sp_input, name, out_type)
serialize_sparse(sp_input, name, out_type)
serialize_tensor(tensor, name)
Session(target, graph, config)
SessionLog
set_random_seed(seed)
setdiff1d(x, y, index_dtype, name)
shape(input, name, out_type)
shape_n(input, out_type, name)
sigmoid(x, name)
sign(x, name)
sin(x, name)
sinh(x, name)
size(input, name, out_type)
slice(input_, begin, size, name)
sort(values, axis, direction, name)
space_to_batch(input, paddings, block_size, name, block_shape)
space_to_batch_nd(input, block_shape, paddings, name)
space_to_depth(input, block_size, name, data_format)
sparse_add(a, b, threshold, thresh)
sparse_concat(axis, sp_inputs, name, expand_nonconcat_dim, concat_dim, expand_nonconcat_dims)
sparse_fill_empty_rows(sp_input, default_value, name)
sparse_mask(a, mask_indices, name)
sparse_maximum(sp_a, sp_b, name)
sparse_merge(sp_ids, sp_values, vocab_size, name, already_sorted)
sparse_minimum(sp_a, sp_b, name)
sparse_placeholder(dtype, shape, name)
sparse_reduce_max(sp_input, axis, keepdims, reduction_axes, keep_dims)
sparse_reduce_max_sparse(sp_input, axis, keepdims, reduction_axes, keep_dims)
sparse_reduce_sum(sp_input, axis, keepdims, reduction_axes, keep_dims)
sparse_reduce_sum_sparse(sp_input, axis, keepdims, reduction_axes, keep_dims)
sparse_reorder(sp_input, name)
sparse_reset_shape(sp_input, new_shape)
sparse_reshape(sp_input, shape, name)
sparse_retain(sp_input, to_retain)
sparse_segment_mean(data, indices, segment_ids, name, num_segments, sparse_gradient)
sparse_segment_sqrt_n(data, indices, segment_ids, name, num_segments, sparse_gradient)
sparse_segment_sum(data, indices, segment_ids, name, num_segments, sparse_gradient)
sparse_slice(sp_input, start, size, name)
sparse_softmax(sp_input, name)
sparse_split(keyword_required, sp_input, num_split, axis, name, split_dim)
sparse_tensor_dense_matmul(sp_a, b, adjoint_a, adjoint_b, name)
sparse_tensor_to_dense(sp_input, default_value, validate_indices, name)
sparse_to_dense(sparse_indices, output_shape, sparse_values, default_value, validate_indices, name)
sparse_to_indicator(sp_input, vocab_size, name)
sparse_transpose(sp_input, perm, name)
SparseConditionalAccumulator(dtype, shape, shared_name, name, reduction_type)
SparseFeature(index_key, value_key, dtype, size, already_sorted)
SparseTensor(indices, values, dense_shape)
SparseTensorValue(indices, values, dense_shape)
split(value, num_or_size_splits, axis, num, name)
sqrt(x, name)
square(x, name)
squared_difference(x, y, name)
squeeze(input, axis, name, squeeze_dims)
stack(values, axis, name)
stop_gradient(input, name)
strided_slice(input_, begin, end, strides, begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask,
    var, name)
string
string_join(inputs, separator, name)
string_split(source, sep, skip_empty, delimiter, result_type, name)
string_strip(input, name)
string_to_hash_bucket(string_tensor, num_buckets, name, input)
string_to_hash_bucket_fast(input, num_buckets, name)
string_to_hash_bucket_strong(input, num_buckets, key, name)
string_to_number(string_tensor, out_type, name, input)
substr(input, pos, len, name, unit)
subtract(x, y, name)
Summary
SummaryMetadata
TensorInfo
svd(tensor, full_matrices, compute_uv, name)
switch_case(branch_index, branch_fns, default, name)
tables_initializer(name)
tan(x, name)
tanh(x, name)
Tensor
tensor_scatter_add(tensor, indices, updates, bad_indices_policy, name)
tensor_scatter_nd_add(tensor, indices, updates, bad_indices_policy, name)
tensor_scatter_nd_max(tensor, indices, updates, bad_indices_policy, name)
tensor_scatter_nd_min(tensor, indices, updates, bad_indices_policy, name)
tensor_scatter_nd_sub(tensor, indices, updates, bad_indices_policy, name)
tensor_scatter_nd_update(tensor, indices, updates, name)
tensor_scatter_sub(tensor, indices, updates, bad_indices_policy, name)
tensor_scatter_update(tensor, indices, updates, name)
TensorArray(dtype, size, dynamic_size, clear_after_read, tensor_array_name, handle, flow, infer_shape,
    element_shape, colocate_with_first_write_call, name)
tensordot(a, b, axes, name)
TensorShape(dims)
TensorSpec(shape, dtype, name)
TextLineReader(skip_header_lines, name)
TFRecordReader(name, options)
tile(input, multiples, name)
timestamp(name)
to_bfloat16(x, name)
to_complex128(x, name)
to_complex64(x, name)
to_double(x, name)
to_float(x, name)
to_int32(x, name)
to_int64(x, name)
trace(x, name)
trainable_variables(scope)
transpose(a, perm, name, conjugate)
truediv(x, y, name)
truncated_normal(shape, mean, stddev, dtype, seed, name)
truncated_normal_initializer(mean, stddev, seed, dtype)
truncatediv(x, y, name)
truncatemod(x, y, name)
tuple(tensors, name, control_inputs)
uint16
uint32
uint64
uint8
UnconnectedGradients
uniform_unit_scaling_initializer(factor, seed, dtype)
unique(x, out_idx, name)
unique_with_counts(x, out_idx, name)
unravel_index(indices, dims, name)
unsorted_segment_max(data, segment_ids, num_segments, name)
unsorted_segment_mean(data, segment_ids, num_segments, name)
unsorted_segment_min(data, segment_ids, num_segments, name)
unsorted_segment_prod(data, segment_ids, num_segments, name)
unsorted_segment_sqrt_n(data, segment_ids, num_segments, name)
unsorted_segment_sum(data, segment_ids, num_segments, name)
unstack(value, num, axis, name)
Variable(initial_value, trainable, collections, validate_shape, caching_device, name, variable_def, dtype,
    expected_shape, import_scope, constraint, use_resource, synchronization, aggregation, shape)
variable_axis_size_partitioner(max_shard_bytes, axis, bytes_per_string_element, max_shards)
variable_op_scope(values, name_or_scope, default_name, initializer, regularizer, caching_device, partitioner,
    custom_getter, reuse, dtype, use_resource, constraint)
variable_scope(name_or_scope, default_name, values, initializer, regularizer, caching_device, partitioner,
    custom_getter, reuse, dtype, use_resource, constraint, auxiliary_name_scope)
VariableAggregation
variables_initializer(var_list, name)
VariableScope(reuse, name, initializer, regularizer, caching_device, partitioner, custom_getter, name_scope,
    dtype, use_resource, constraint)
VariableSynchronization
variance_scaling_initializer(scale, mode, distribution, seed, dtype)
VarLenFeature(dtype)
verify_tensor_all_finite(t, msg, name, x, message)
where(condition, x, y, name)
where_v2(condition, x, y, name)
while_loop(cond, body, loop_vars, shape_invariants, parallel_iterations, back_prop, swap_memory, name,
    maximum_iterations, return_same_structure)
WholeFileReader(name)
write_file(filename, contents, name)
zeros(shape, dtype, name, layout)
zeros_initializer(dtype)
zeros_like(tensor, dtype, name, optimize)
zeta(x, q, name)
""",
    "bitwise": """
bitwise_and(x, y, name)
bitwise_or(x, y, name)
bitwise_xor(x, y, name)
invert(x, name)
left_shift(x, y, name)
right_shift(x, y, name)
""",
    "data": """
AUTOTUNE
Dataset()
FixedLengthRecordDataset(filenames, record_bytes, header_bytes, footer_bytes, buffer_size, compression_type, num_parallel_reads, name)
get_output_classes(dataset_or_iterator)
get_output_shapes(dataset_or_iterator)
get_output_types(dataset_or_iterator)
Iterator(iterator_resource, initializer, output_types, output_shapes, output_classes)
make_initializable_iterator(dataset, shared_name)
make_one_shot_iterator(dataset)
Options()
TextLineDataset(filenames, compression_type, buffer_size, num_parallel_reads, name)
TFRecordDataset(filenames, compression_type, buffer_size, num_parallel_reads, name)
""",
    "data.experimental": """
AUTOTUNE
make_saveable_from_iterator(iterator, external_state_policy)
""",
    "debugging": """
Assert(condition, data, summarize, name)
assert_all_finite(t, msg, name, x, message)
assert_equal(x, y, data, summarize, message, name)
assert_greater(x, y, data, summarize, message, name)
assert_greater_equal(x, y, data, summarize, message, name)
assert_integer(x, message, name)
assert_less(x, y, data, summarize, message, name)
assert_less_equal(x, y, data, summarize, message, name)
assert_near(x, y, rtol, atol, data, summarize, message, name)
assert_negative(x, data, summarize, message, name)
assert_non_negative(x, data, summarize, message, name)
assert_non_positive(x, data, summarize, message, name)
assert_none_equal(x, y, data, summarize, message, name)
assert_positive(x, data, summarize, message, name)
assert_proper_iterable(values)
assert_rank(x, rank, data, summarize, message, name)
assert_rank_at_least(x, rank, data, summarize, message, name)
assert_rank_in(x, ranks, data, summarize, message, name)
assert_same_float_dtype(tensors, dtype)
assert_scalar(tensor, name, message)
assert_shapes(shapes, data, summarize, message, name)
assert_type(tensor, tf_type, message, name)
check_numerics(tensor, message, name)
is_finite(x, name)
is_inf(x, name)
is_nan(x, name)
is_non_decreasing(x, name)
is_numeric_tensor(tensor)
is_strictly_increasing(x, name)
""",
    "errors": """
ABORTED
AbortedError
ALREADY_EXISTS
AlreadyExistsError
CANCELLED
CancelledError
DATA_LOSS
DataLossError
DEADLINE_EXCEEDED
DeadlineExceededError
error_code_from_exception_type(cls)
exception_type_from_error_code(error_code)
FAILED_PRECONDITION
FailedPreconditionError
INTERNAL
InternalError
INVALID_ARGUMENT
InvalidArgumentError
NOT_FOUND
NotFoundError
OK
OpError
OUT_OF_RANGE
OutOfRangeError
PERMISSION_DENIED
PermissionDeniedError
RESOURCE_EXHAUSTED
ResourceExhaustedError
UNAUTHENTICATED
UnauthenticatedError
UNAVAILABLE
UnavailableError
UNIMPLEMENTED
UnimplementedError
UNKNOWN
UnknownError
""",
    "image": """
adjust_brightness(image, delta)
adjust_contrast(images, contrast_factor)
adjust_gamma(image, gamma, gain)
adjust_hue(image, delta, name)
adjust_saturation(image, saturation_factor, name)
central_crop(image, central_fraction)
convert_image_dtype(image, dtype, saturate, name)
crop_and_resize(image, boxes, box_ind, crop_size, method, extrapolation_value, name, box_indices)
crop_to_bounding_box(image, offset_height, offset_width, target_height, target_width)
decode_bmp(contents, channels, name)
decode_gif(contents, name)
decode_image(contents, channels, dtype, name, expand_animations)
decode_jpeg(contents, channels, ratio, fancy_upscaling, try_recover_truncated, acceptable_fraction, dct_method, name)
decode_png(contents, channels, dtype, name)
draw_bounding_boxes(images, boxes, name, colors)
encode_jpeg(image, format, quality, progressive, optimize_size, chroma_downsampling, density_unit, x_density, y_density, xmp_metadata, name)
encode_png(image, compression, name)
extract_jpeg_shape(contents, output_type, name)
flip_left_right(image)
flip_up_down(image)
grayscale_to_rgb(images, name)
hsv_to_rgb(images, name)
image_gradients(image)
is_jpeg(contents, name)
non_max_suppression(boxes, scores, max_output_size, iou_threshold, score_threshold, name)
pad_to_bounding_box(image, offset_height, offset_width, target_height, target_width)
per_image_standardization(image)
psnr(a, b, max_val, name)
random_brightness(image, max_delta, seed)
random_contrast(image, lower, upper, seed)
random_crop(value, size, seed, name)
random_flip_left_right(image, seed)
random_flip_up_down(image, seed)
random_hue(image, max_delta, seed)
random_saturation(image, lower, upper, seed)
resize(images, size, method, align_corners, preserve_aspect_ratio, name)
resize_area(images, size, align_corners, name)
resize_bicubic(images, size, align_corners, name, half_pixel_centers)
resize_bilinear(images, size, align_corners, name, half_pixel_centers)
resize_image_with_crop_or_pad(image, target_height, target_width)
resize_image_with_pad(image, target_height, target_width, method, align_corners)
resize_images(images, size, method, align_corners, preserve_aspect_ratio, name)
resize_nearest_neighbor(images, size, align_corners, name, half_pixel_centers)
resize_with_crop_or_pad(image, target_height, target_width)
ResizeMethod()
rgb_to_grayscale(images, name)
rgb_to_hsv(images, name)
rgb_to_yiq(images)
rgb_to_yuv(images)
rot90(image, k, name)
sobel_edges(image)
ssim(img1, img2, max_val, filter_size, filter_sigma, k1, k2, return_index_map)
ssim_multiscale(img1, img2, max_val, power_factors, filter_size, filter_sigma, k1, k2)
total_variation(images, name)
transpose(image, name)
transpose_image(image, name)
yiq_to_rgb(images)
yuv_to_rgb(images)
""",
    "initializers": """
constant(value, dtype, verify_shape)
global_variables()
glorot_normal(seed, dtype)
glorot_uniform(seed, dtype)
he_normal(seed)
he_uniform(seed)
identity(gain, dtype)
lecun_normal(seed)
lecun_uniform(seed)
local_variables()
ones(dtype)
orthogonal(gain, seed, dtype)
random_normal(mean, stddev, seed, dtype)
random_uniform(minval, maxval, seed, dtype)
tables_initializer(name)
truncated_normal(mean, stddev, seed, dtype)
uniform_unit_scaling(factor, seed, dtype)
variables(var_list, name)
variance_scaling(scale, mode, distribution, seed, dtype)
zeros(dtype)
""",
    "app": """
run(main, argv)
""",
    "flags": """
ArgumentParser
ArgumentSerializer
BaseListParser
BooleanFlag
BooleanParser
CantOpenFlagFileError
CsvListSerializer
DEFINE
DEFINE_alias
DEFINE_bool
DEFINE_boolean
DEFINE_enum
DEFINE_enum_class
DEFINE_flag
DEFINE_float
DEFINE_integer
DEFINE_list
DEFINE_multi
DEFINE_multi_enum
DEFINE_multi_enum_class
DEFINE_multi_float
DEFINE_multi_integer
DEFINE_multi_string
DEFINE_spaceseplist
DEFINE_string
DuplicateFlagError
EnumClassFlag
EnumClassListSerializer
EnumClassParser
EnumClassSerializer
EnumFlag
EnumParser
Error
FLAGS
Flag
FlagHolder
FlagNameConflictsWithMethodError
FlagValues
FloatParser
IllegalFlagValueError
IntegerParser
ListParser
ListSerializer
MultiEnumClassFlag
MultiFlag
UnparsedFlagAccessError
UnrecognizedFlagError
ValidationError
WhitespaceSeparatedListParser
adopt_module_key_flags
declare_key_flag
disclaim_key_flags
doc_to_help
flag_dict_to_args
get_help_width
mark_bool_flags_as_mutual_exclusive
mark_flag_as_required
mark_flags_as_mutual_exclusive
mark_flags_as_required
multi_flags_validator
override_value
register_multi_flags_validator
register_validator
set_default
text_wrap
validator
""",
    "resource_loader": """
get_data_files_path()
get_path_to_datafile(path)
get_root_dir_with_all_resources()
load_resource(path)
readahead_file_path(path, readahead)
""",
    "logging": """
DEBUG
ERROR
FATAL
INFO
TaskLevelStatusMessage(msg)
WARN
debug(msg, *args, **kwargs)
error(msg, *args, **kwargs)
fatal(msg, *args, **kwargs)
flush()
get_verbosity()
info(msg, *args, **kwargs)
log(level, msg, *args, **kwargs)
log_every_n(level, msg, n, *args)
log_first_n(level, msg, n, *args)
log_if(level, msg, condition, *args)
set_verbosity(v)
vlog(level, msg, *args, **kwargs)
warn(msg, *args, **kwargs)
warning(msg, *args, **kwargs)
""",
    "gfile": """
Copy(oldpath, newpath, overwrite)
DeleteRecursively(dirname)
Exists(filename)
FastGFile(name, mode)
GFile(name, mode)
Glob(filename)
IsDirectory(dirname)
ListDirectory(dirname)
MakeDirs(dirname)
MkDir(dirname)
Open(name, mode)
Remove(filename)
Rename(oldname, newname, overwrite)
Stat(filename)
Walk(top, in_order)
""",
    "io.gfile": """
copy(src, dst, overwrite)
exists(path)
GFile(name, mode)
glob(pattern)
isdir(path)
join(path, *paths)
listdir(path)
makedirs(path)
mkdir(path)
remove(path)
rename(src, dst, overwrite)
rmtree(path)
stat(path)
walk(top, topdown, onerror)
""",
    "io": """
decode_base64(input, name)
decode_bmp(contents, channels, name)
decode_csv(records, record_defaults, field_delim, use_quote_delim, name, na_value, select_cols)
decode_gif(contents, name)
decode_image(contents, channels, dtype, name, expand_animations)
decode_jpeg(contents, channels, ratio, fancy_upscaling, try_recover_truncated, acceptable_fraction, dct_method, name)
decode_png(contents, channels, dtype, name)
decode_raw(input_bytes, out_type, little_endian, name, bytes)
deserialize_many_sparse(serialized_sparse, dtype, rank, name)
encode_base64(input, pad, name)
encode_jpeg(image, format, quality, progressive, optimize_size, chroma_downsampling, density_unit, x_density, y_density, xmp_metadata, name)
encode_png(image, compression, name)
extract_jpeg_shape(contents, output_type, name)
FixedLenFeature
FixedLenSequenceFeature
is_jpeg(contents, name)
match_filenames_once(pattern, name)
matching_files(pattern, name)
PaddingFIFOQueue(capacity, dtypes, shapes, names, shared_name, name)
parse_example(serialized, features, name, example_names)
parse_single_example(serialized, features, name, example_names)
parse_single_sequence_example(serialized, context_features, sequence_features, example_name, name)
parse_tensor(serialized, out_type, name)
PriorityQueue(capacity, types, shapes, names, shared_name, name)
QueueBase(dtypes, shapes, names, queue_ref)
RandomShuffleQueue(capacity, min_after_dequeue, dtypes, shapes, names, seed, shared_name, name)
read_file(filename, name)
serialize_many_sparse(sp_input, name, out_type)
serialize_sparse(sp_input, name, out_type)
serialize_tensor(tensor, name)
SparseFeature(index_key, value_key, dtype, size, already_sorted)
tf_record_iterator(path, options)
TFRecordCompressionType
TFRecordOptions
TFRecordWriter(path, options)
VarLenFeature(dtype)
write_file(filename, contents, name)
write_graph(graph_or_graph_def, logdir, name, as_text)
""",
    "layers": """
average_pooling1d(inputs, pool_size, strides, padding, data_format, name)
average_pooling2d(inputs, pool_size, strides, padding, data_format, name)
average_pooling3d(inputs, pool_size, strides, padding, data_format, name)
AveragePooling1D(pool_size, strides, padding, data_format, name)
AveragePooling2D(pool_size, strides, padding, data_format, name)
AveragePooling3D(pool_size, strides, padding, data_format, name)
batch_normalization(inputs, axis, momentum, epsilon, center, scale, beta_initializer, gamma_initializer,
    moving_mean_initializer, moving_variance_initializer, beta_regularizer, gamma_regularizer, beta_constraint,
    gamma_constraint, training, trainable, name, reuse, renorm, renorm_clipping, renorm_momentum, fused,
    virtual_batch_size, adjustment)
BatchNormalization(axis, momentum, epsilon, center, scale, beta_initializer, gamma_initializer,
    moving_mean_initializer, moving_variance_initializer, beta_regularizer, gamma_regularizer, beta_constraint,
    gamma_constraint, renorm, renorm_clipping, renorm_momentum, fused, trainable, virtual_batch_size, adjustment,
    name)
Conv1D(filters, kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias,
    kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer,
    kernel_constraint, bias_constraint, trainable, name)
conv1d(inputs, filters, kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias,
    kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer,
    kernel_constraint, bias_constraint, trainable, name, reuse)
Conv2D(filters, kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias,
    kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer,
    kernel_constraint, bias_constraint, trainable, name)
conv2d(inputs, filters, kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias,
    kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer,
    kernel_constraint, bias_constraint, trainable, name, reuse)
conv2d_transpose(inputs, filters, kernel_size, strides, padding, data_format, activation, use_bias,
    kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer,
    kernel_constraint, bias_constraint, trainable, name, reuse)
Conv2DTranspose(filters, kernel_size, strides, padding, data_format, activation, use_bias, kernel_initializer,
    bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer, kernel_constraint,
    bias_constraint, trainable, name)
Conv3D(filters, kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias,
    kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer,
    kernel_constraint, bias_constraint, trainable, name)
conv3d(inputs, filters, kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias,
    kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer,
    kernel_constraint, bias_constraint, trainable, name, reuse)
conv3d_transpose(inputs, filters, kernel_size, strides, padding, data_format, activation, use_bias,
    kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer,
    kernel_constraint, bias_constraint, trainable, name, reuse)
Conv3DTranspose(filters, kernel_size, strides, padding, data_format, activation, use_bias, kernel_initializer,
    bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer, kernel_constraint,
    bias_constraint, trainable, name)
Dense(units, activation, use_bias, kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer,
    activity_regularizer, kernel_constraint, bias_constraint, trainable, name)
dense(inputs, units, activation, use_bias, kernel_initializer, bias_initializer, kernel_regularizer,
    bias_regularizer, activity_regularizer, kernel_constraint, bias_constraint, trainable, name, reuse)
Dropout(rate, noise_shape, seed, name)
dropout(inputs, rate, noise_shape, seed, training, name)
Flatten(data_format)
flatten(inputs, name, data_format)
InputSpec(dtype, shape, ndim, max_ndim, min_ndim, axes)
Layer(trainable, name, dtype)
max_pooling1d(inputs, pool_size, strides, padding, data_format, name)
max_pooling2d(inputs, pool_size, strides, padding, data_format, name)
max_pooling3d(inputs, pool_size, strides, padding, data_format, name)
MaxPooling1D(pool_size, strides, padding, data_format, name)
MaxPooling2D(pool_size, strides, padding, data_format, name)
MaxPooling3D(pool_size, strides, padding, data_format, name)
separable_conv1d(inputs, filters, kernel_size, strides, padding, data_format, dilation_rate, depth_multiplier,
    activation, use_bias, depthwise_initializer, pointwise_initializer, bias_initializer, depthwise_regularizer,
    pointwise_regularizer, bias_regularizer, activity_regularizer, depthwise_constraint, pointwise_constraint,
    bias_constraint, trainable, name, reuse)
separable_conv2d(inputs, filters, kernel_size, strides, padding, data_format, dilation_rate, depth_multiplier,
    activation, use_bias, depthwise_initializer, pointwise_initializer, bias_initializer, depthwise_regularizer,
    pointwise_regularizer, bias_regularizer, activity_regularizer, depthwise_constraint, pointwise_constraint,
    bias_constraint, trainable, name, reuse)
SeparableConv1D(filters, kernel_size, strides, padding, data_format, dilation_rate, depth_multiplier, activation,
    use_bias, depthwise_initializer, pointwise_initializer, bias_initializer, depthwise_regularizer,
    pointwise_regularizer, bias_regularizer, activity_regularizer, depthwise_constraint, pointwise_constraint,
    bias_constraint, trainable, name)
SeparableConv2D(filters, kernel_size, strides, padding, data_format, dilation_rate, depth_multiplier, activation,
    use_bias, depthwise_initializer, pointwise_initializer, bias_initializer, depthwise_regularizer,
    pointwise_regularizer, bias_regularizer, activity_regularizer, depthwise_constraint, pointwise_constraint,
    bias_constraint, trainable, name)
""",
    "linalg": """
adjoint(matrix, name)
band_part(input, num_lower, num_upper, name)
cholesky(input, name)
cholesky_solve(chol, rhs, name)
cross(a, b, name)
det(input, name)
diag(diagonal, name, k, num_rows, num_cols, padding_value, align)
diag_part(input, name, k, padding_value, align)
eigh(tensor, name)
eigvalsh(tensor, name)
einsum(equation, *inputs)
eye(num_rows, num_columns, batch_shape, dtype, name)
global_norm(t_list, name)
inv(input, adjoint, name)
l2_normalize(x, axis, epsilon, name, dim)
logdet(matrix, name)
matmul(a, b, transpose_a, transpose_b, adjoint_a, adjoint_b, a_is_sparse, b_is_sparse, output_type, grad_a,
    grad_b, name)
matrix_transpose(a, name, conjugate)
matvec(a, b, transpose_a, adjoint_a, a_is_sparse, b_is_sparse, name)
norm(tensor, ord, axis, keepdims, name, keep_dims)
normalize(tensor, ord, axis, name)
qr(input, full_matrices, name)
set_diag(input, diagonal, name, k, align)
slogdet(input, name)
solve(matrix, rhs, adjoint, name)
svd(tensor, full_matrices, compute_uv, name)
tensor_diag(diagonal, name)
tensor_diag_part(input, name)
tensordot(a, b, axes, name)
trace(x, name)
transpose(a, name, conjugate)
triangular_solve(matrix, rhs, lower, adjoint, name)
""",
    "lookup": """
KeyValueTensorInitializer(keys, values, key_dtype, value_dtype, name)
StaticHashTable(initializer, default_value, name, experimental_is_anonymous)
StaticVocabularyTable(initializer, num_oov_buckets, lookup_key_dtype, name, experimental_is_anonymous)
TextFileIndex()
TextFileInitializer(filename, key_dtype, key_index, value_dtype, value_index, vocab_size, delimiter, name,
    value_index_offset)
""",
    "losses": """
absolute_difference(labels, predictions, weights, scope, loss_collection, reduction)
add_loss(loss, loss_collection)
compute_weighted_loss(losses, weights, scope, loss_collection, reduction)
cosine_distance(labels, predictions, axis, weights, scope, loss_collection, reduction, dim)
get_losses(scope, loss_collection)
get_regularization_loss(scope, name)
get_regularization_losses(scope)
get_total_loss(add_regularization_losses, name, scope)
hinge_loss(labels, logits, weights, scope, loss_collection, reduction)
huber_loss(labels, predictions, weights, delta, scope, loss_collection, reduction)
log_loss(labels, predictions, weights, epsilon, scope, loss_collection, reduction)
mean_squared_error(labels, predictions, weights, scope, loss_collection, reduction)
Reduction
sigmoid_cross_entropy(multi_class_labels, logits, weights, label_smoothing, scope, loss_collection, reduction)
softmax_cross_entropy(onehot_labels, logits, weights, label_smoothing, scope, loss_collection, reduction)
sparse_softmax_cross_entropy(labels, logits, weights, scope, loss_collection, reduction)
""",
    "math": """
abs(x, name)
accumulate_n(inputs, shape, tensor_dtype, name)
acos(x, name)
acosh(x, name)
add(x, y, name)
add_n(inputs, name)
angle(input, name)
argmax(input, axis, name, dimension, output_type)
argmin(input, axis, name, dimension, output_type)
asin(x, name)
asinh(x, name)
atan(x, name)
atan2(y, x, name)
atanh(x, name)
betainc(a, b, x, name)
bincount(arr, weights, minlength, maxlength, dtype)
ceil(x, name)
confusion_matrix(labels, predictions, num_classes, dtype, name, weights)
conj(x, name)
cos(x, name)
cosh(x, name)
count_nonzero(input_tensor, axis, keepdims, dtype, name, reduction_indices, keep_dims, input)
cumprod(x, axis, exclusive, reverse, name)
cumsum(x, axis, exclusive, reverse, name)
digamma(x, name)
divide(x, y, name)
divide_no_nan(x, y, name)
equal(x, y, name)
erf(x, name)
erfc(x, name)
erfcinv(x, name)
erfinv(x, name)
exp(x, name)
expm1(x, name)
floor(x, name)
floordiv(x, y, name)
floormod(x, y, name)
greater(x, y, name)
greater_equal(x, y, name)
igamma(a, x, name)
igammac(a, x, name)
imag(input, name)
in_top_k(predictions, targets, k, name)
invert_permutation(x, name)
is_finite(x, name)
is_inf(x, name)
is_nan(x, name)
is_non_decreasing(x, name)
is_strictly_increasing(x, name)
l2_normalize(x, axis, epsilon, name, dim)
lbeta(x, name)
less(x, y, name)
less_equal(x, y, name)
lgamma(x, name)
log(x, name)
log1p(x, name)
log_sigmoid(x, name)
log_softmax(logits, axis, name, dim)
logical_and(x, y, name)
logical_not(x, name)
logical_or(x, y, name)
logical_xor(x, y, name)
maximum(x, y, name)
minimum(x, y, name)
mod(x, y, name)
multiply(x, y, name)
multiply_no_nan(x, y, name)
ndtri(x, name)
negative(x, name)
nextafter(x1, x2, name)
not_equal(x, y, name)
polygamma(a, x, name)
polyval(coeffs, x, name)
pow(x, y, name)
real(input, name)
reciprocal(x, name)
reciprocal_no_nan(x, name)
reduce_all(input_tensor, axis, keepdims, name, reduction_indices, keep_dims)
reduce_any(input_tensor, axis, keepdims, name, reduction_indices, keep_dims)
reduce_euclidean_norm(input_tensor, axis, keepdims, name)
reduce_logsumexp(input_tensor, axis, keepdims, name, reduction_indices, keep_dims)
reduce_max(input_tensor, axis, keepdims, name, reduction_indices, keep_dims)
reduce_mean(input_tensor, axis, keepdims, name, reduction_indices, keep_dims)
reduce_min(input_tensor, axis, keepdims, name, reduction_indices, keep_dims)
reduce_prod(input_tensor, axis, keepdims, name, reduction_indices, keep_dims)
reduce_std(input_tensor, axis, keepdims, name)
reduce_sum(input_tensor, axis, keepdims, name, reduction_indices, keep_dims)
reduce_variance(input_tensor, axis, keepdims, name)
rint(x, name)
round(x, name)
rsqrt(x, name)
scalar_mul(scalar, x, name)
segment_max(data, segment_ids, name)
segment_mean(data, segment_ids, name)
segment_min(data, segment_ids, name)
segment_prod(data, segment_ids, name)
segment_sum(data, segment_ids, name)
sigmoid(x, name)
sign(x, name)
sin(x, name)
sinh(x, name)
softmax(logits, axis, name, dim)
softplus(features, name)
softsign(features, name)
sqrt(x, name)
square(x, name)
squared_difference(x, y, name)
subtract(x, y, name)
tan(x, name)
tanh(x, name)
top_k(input, k, sorted, index_type, name)
truediv(x, y, name)
unsorted_segment_max(data, segment_ids, num_segments, name)
unsorted_segment_mean(data, segment_ids, num_segments, name)
unsorted_segment_min(data, segment_ids, num_segments, name)
unsorted_segment_prod(data, segment_ids, num_segments, name)
unsorted_segment_sqrt_n(data, segment_ids, num_segments, name)
unsorted_segment_sum(data, segment_ids, num_segments, name)
xdivy(x, y, name)
xlog1py(x, y, name)
xlogy(x, y, name)
zero_fraction(value, name)
zeta(x, q, name)
""",
    "metrics": """
accuracy(labels, predictions, weights, metrics_collections, updates_collections, name)
auc(labels, predictions, weights, num_thresholds, metrics_collections, updates_collections, curve, name,
    summation_method, thresholds)
average_precision_at_k(labels, predictions, k, weights, metrics_collections, updates_collections, name)
false_negatives(labels, predictions, weights, metrics_collections, updates_collections, name)
false_negatives_at_thresholds(labels, predictions, thresholds, weights, metrics_collections, updates_collections, name)
false_positives(labels, predictions, weights, metrics_collections, updates_collections, name)
false_positives_at_thresholds(labels, predictions, thresholds, weights, metrics_collections, updates_collections, name)
mean(values, weights, metrics_collections, updates_collections, name)
mean_absolute_error(labels, predictions, weights, metrics_collections, updates_collections, name)
mean_cosine_distance(labels, predictions, dim, weights, metrics_collections, updates_collections, name)
mean_iou(labels, predictions, num_classes, weights, metrics_collections, updates_collections, name)
mean_per_class_accuracy(labels, predictions, num_classes, weights, metrics_collections, updates_collections, name)
mean_relative_error(labels, predictions, normalizer, weights, metrics_collections, updates_collections, name)
mean_squared_error(labels, predictions, weights, metrics_collections, updates_collections, name)
mean_tensor(values, weights, metrics_collections, updates_collections, name)
percentage_below(values, threshold, weights, metrics_collections, updates_collections, name)
precision(labels, predictions, weights, metrics_collections, updates_collections, name)
precision_at_k(labels, predictions, k, class_id, weights, metrics_collections, updates_collections, name)
precision_at_thresholds(labels, predictions, thresholds, weights, metrics_collections, updates_collections, name)
precision_at_top_k(labels, predictions_idx, k, class_id, weights, metrics_collections, updates_collections, name)
recall(labels, predictions, weights, metrics_collections, updates_collections, name)
recall_at_k(labels, predictions, k, class_id, weights, metrics_collections, updates_collections, name)
recall_at_thresholds(labels, predictions, thresholds, weights, metrics_collections, updates_collections, name)
recall_at_top_k(labels, predictions_idx, k, class_id, weights, metrics_collections, updates_collections, name)
root_mean_squared_error(labels, predictions, weights, metrics_collections, updates_collections, name)
sensitivity_at_specificity(labels, predictions, specificity, weights, num_thresholds, metrics_collections,
    updates_collections, name)
sparse_average_precision_at_k(labels, predictions, k, weights, metrics_collections, updates_collections, name)
sparse_precision_at_k(labels, predictions, k, class_id, weights, metrics_collections, updates_collections, name)
specificity_at_sensitivity(labels, predictions, sensitivity, weights, num_thresholds, metrics_collections,
    updates_collections, name)
true_negatives(labels, predictions, weights, metrics_collections, updates_collections, name)
true_negatives_at_thresholds(labels, predictions, thresholds, weights, metrics_collections, updates_collections, name)
true_positives(labels, predictions, weights, metrics_collections, updates_collections, name)
true_positives_at_thresholds(labels, predictions, thresholds, weights, metrics_collections, updates_collections, name)
""",
    "nn": """
atrous_conv2d(value, filters, rate, padding, name)
atrous_conv2d_transpose(value, filters, output_shape, rate, padding, name)
avg_pool(value, ksize, strides, padding, data_format, name, input)
avg_pool1d(input, ksize, strides, padding, data_format, name)
avg_pool2d(value, ksize, strides, padding, data_format, name, input)
avg_pool3d(input, ksize, strides, padding, data_format, name)
avg_pool_v2(input, ksize, strides, padding, data_format, name)
batch_norm_with_global_normalization(t, m, v, beta, gamma, variance_epsilon, scale_after_normalization, name,
    input, mean, variance)
batch_normalization(x, mean, variance, offset, scale, variance_epsilon, name)
bias_add(value, bias, data_format, name)
bidirectional_dynamic_rnn(cell_fw, cell_bw, inputs, sequence_length, initial_state_fw, initial_state_bw, dtype,
    parallel_iterations, swap_memory, time_major, scope)
collapse_repeated(labels, seq_length, name)
conv1d(value, filters, stride, padding, use_cudnn_on_gpu, data_format, name, input, dilations)
conv1d_transpose(input, filters, output_shape, strides, padding, data_format, dilations, name)
conv2d(input, filter, strides, padding, use_cudnn_on_gpu, data_format, dilations, name, filters)
conv2d_backprop_filter(input, filter_sizes, out_backprop, strides, padding, use_cudnn_on_gpu, data_format,
    dilations, name)
conv2d_backprop_input(input_sizes, filter, out_backprop, strides, padding, use_cudnn_on_gpu, data_format,
    dilations, name, filters)
conv2d_transpose(value, filter, output_shape, strides, padding, data_format, name, input, filters, dilations)
conv3d(input, filter, strides, padding, data_format, dilations, name, filters)
conv3d_backprop_filter(input, filter_sizes, out_backprop, strides, padding, data_format, dilations, name)
conv3d_backprop_filter_v2(input, filter_sizes, out_backprop, strides, padding, data_format, dilations, name)
conv3d_transpose(value, filter, output_shape, strides, padding, data_format, name, input, filters, dilations)
conv_transpose(input, filters, output_shape, strides, padding, data_format, dilations, name)
convolution(input, filter, padding, strides, dilation_rate, name, data_format, filters, dilations)
crelu(features, name, axis)
ctc_beam_search_decoder(inputs, sequence_length, beam_width, top_paths, merge_repeated)
ctc_beam_search_decoder_v2(inputs, sequence_length, beam_width, top_paths)
ctc_greedy_decoder(inputs, sequence_length, merge_repeated, blank_index)
ctc_loss(labels, inputs, sequence_length, preprocess_collapse_repeated, ctc_merge_repeated,
    ignore_longer_outputs_than_inputs, time_major, logits)
ctc_loss_v2(labels, logits, label_length, logit_length, logits_time_major, unique, blank_index, name)
ctc_unique_labels(labels, name)
depth_to_space(input, block_size, name, data_format)
depthwise_conv2d(input, filter, strides, padding, rate, name, data_format, dilations)
depthwise_conv2d_backprop_filter(input, filter_sizes, out_backprop, strides, padding, data_format, dilations, name)
depthwise_conv2d_backprop_input(input_sizes, filter, out_backprop, strides, padding, data_format, dilations, name)
depthwise_conv2d_native(input, filter, strides, padding, data_format, dilations, name)
depthwise_conv2d_native_backprop_filter(input, filter_sizes, out_backprop, strides, padding, data_format,
    dilations, name)
depthwise_conv2d_native_backprop_input(input_sizes, filter, out_backprop, strides, padding, data_format,
    dilations, name)
dropout(x, keep_prob, noise_shape, seed, name, rate)
dynamic_rnn(cell, inputs, sequence_length, initial_state, dtype, parallel_iterations, swap_memory, time_major,
    scope)
elu(features, name)
embedding_lookup(params, ids, partition_strategy, name, validate_indices, max_norm)
embedding_lookup_sparse(params, sp_ids, sp_weights, partition_strategy, name, combiner, max_norm, allow_fast_lookup)
fused_batch_norm(x, scale, offset, mean, variance, epsilon, data_format, is_training, name,
    exponential_avg_factor)
in_top_k(predictions, targets, k, name)
l2_loss(t, name)
l2_normalize(x, axis, epsilon, name, dim)
leaky_relu(features, alpha, name)
local_response_normalization(input, depth_radius, bias, alpha, beta, name)
log_poisson_loss(targets, log_input, compute_full_loss, name)
log_softmax(logits, axis, name, dim)
lrn(input, depth_radius, bias, alpha, beta, name)
max_pool(value, ksize, strides, padding, data_format, name, input)
max_pool1d(input, ksize, strides, padding, data_format, name)
max_pool2d(input, ksize, strides, padding, data_format, name)
max_pool3d(input, ksize, strides, padding, data_format, name)
max_pool_v2(input, ksize, strides, padding, data_format, name)
max_pool_with_argmax(input, ksize, strides, padding, data_format, Targmax, name, output_dtype,
    include_batch_in_index)
moments(x, axes, shift, name, keep_dims, keepdims)
normalize_moments(counts, mean_ss, variance_ss, shift, name)
pool(input, window_shape, pooling_type, padding, dilation_rate, strides, name, data_format, dilations)
raw_rnn(cell, loop_fn, parallel_iterations, swap_memory, scope)
relu(features, name)
relu6(features, name)
relu_layer(x, weights, biases, name)
safe_embedding_lookup_sparse(embedding_weights, sparse_ids, sparse_weights, combiner, default_id, name,
    partition_strategy, max_norm, allow_fast_lookup)
selu(features, name)
separable_conv2d(input, depthwise_filter, pointwise_filter, strides, padding, rate, name, data_format,
    dilations)
sigmoid(x, name)
sigmoid_cross_entropy_with_logits(labels, logits, name)
silu(features, beta)
softmax(logits, axis, name, dim)
softmax_cross_entropy_with_logits(labels, logits, dim, name, axis)
softmax_cross_entropy_with_logits_v2(labels, logits, axis, name, dim)
softplus(features, name)
softsign(features, name)
space_to_batch(input, paddings, block_size, name, block_shape)
space_to_depth(input, block_size, name, data_format)
sparse_softmax_cross_entropy_with_logits(labels, logits, name)
static_bidirectional_rnn(cell_fw, cell_bw, inputs, initial_state_fw, initial_state_bw, dtype, sequence_length,
    scope)
static_rnn(cell, inputs, initial_state, dtype, sequence_length, scope)
static_state_saving_rnn(cell, inputs, state_saver, state_name, sequence_length, scope)
sufficient_statistics(x, axes, shift, keep_dims, name, keepdims)
swish(features, beta)
tanh(x, name)
top_k(input, k, sorted, index_type, name)
weighted_cross_entropy_with_logits(labels, logits, pos_weight, name, targets)
weighted_moments(x, axes, frequency_weights, name, keep_dims, keepdims)
with_space_to_batch(input, dilation_rate, padding, op, filter_shape, spatial_dims, data_format)
xw_plus_b(x, weights, biases, name)
zero_fraction(value, name)
""",
    "nn.rnn_cell": """
BasicLSTMCell(num_units, forget_bias, state_is_tuple, activation, reuse, name, dtype)
BasicRNNCell(num_units, activation, reuse, name, dtype)
DeviceWrapper(cell, device)
DropoutWrapper(cell, input_keep_prob, output_keep_prob, state_keep_prob, variational_recurrent, input_size, dtype,
    seed, dropout_state_filter_visitor)
GRUCell(num_units, activation, reuse, kernel_initializer, bias_initializer, name, dtype)
LSTMCell(num_units, use_peepholes, cell_clip, initializer, num_proj, proj_clip, num_unit_shards, num_proj_shards,
    forget_bias, state_is_tuple, activation, reuse, name, dtype)
LSTMStateTuple(c, h)
MultiRNNCell(cells, state_is_tuple)
ResidualWrapper(cell, residual_fn)
RNNCell(trainable, name, dtype)
""",
    "random": """
categorical(logits, num_samples, dtype, seed, name)
gamma(shape, alpha, beta, dtype, seed, name)
get_seed(op_seed)
multinomial(logits, num_samples, seed, name, output_dtype)
normal(shape, mean, stddev, dtype, seed, name)
poisson(lam, shape, dtype, seed, name)
set_random_seed(seed)
shuffle(value, seed, name)
stateless_gamma(shape, seed, alpha, beta, dtype, name)
stateless_normal(shape, seed, mean, stddev, dtype, name, alg)
stateless_truncated_normal(shape, seed, mean, stddev, dtype, name, alg)
stateless_uniform(shape, seed, minval, maxval, dtype, name, alg)
truncated_normal(shape, mean, stddev, dtype, seed, name)
uniform(shape, minval, maxval, dtype, seed, name)
""",
    "signal": """
fft(input, name)
fft2d(input, name)
fft3d(input, name)
ifft(input, name)
ifft2d(input, name)
ifft3d(input, name)
irfft(input_tensor, fft_length, name)
irfft2d(input_tensor, fft_length, name)
irfft3d(input_tensor, fft_length, name)
rfft(input_tensor, fft_length, name)
rfft2d(input_tensor, fft_length, name)
rfft3d(input_tensor, fft_length, name)
""",
    "sparse": """
add(a, b, threshold, thresh)
concat(axis, sp_inputs, name, expand_nonconcat_dim, concat_dim, expand_nonconcat_dims)
cross(inputs, name, separator)
cross_hashed(inputs, num_buckets, hash_key, name)
expand_dims(sp_input, axis, name)
eye(num_rows, num_columns, dtype, name)
fill_empty_rows(sp_input, default_value, name)
from_dense(tensor, name)
mask(a, mask_indices, name)
matmul(sp_a, b, adjoint_a, adjoint_b, name)
maximum(sp_a, sp_b, name)
merge(sp_ids, sp_values, vocab_size, name, already_sorted)
minimum(sp_a, sp_b, name)
placeholder(dtype, shape, name)
reduce_max(sp_input, axis, keepdims, reduction_axes, keep_dims)
reduce_max_sparse(sp_input, axis, keepdims, reduction_axes, keep_dims)
reduce_sum(sp_input, axis, keepdims, reduction_axes, keep_dims)
reduce_sum_sparse(sp_input, axis, keepdims, reduction_axes, keep_dims)
reorder(sp_input, name)
reset_shape(sp_input, new_shape)
reshape(sp_input, shape, name)
retain(sp_input, to_retain)
segment_mean(data, indices, segment_ids, name, num_segments, sparse_gradient)
segment_sqrt_n(data, indices, segment_ids, name, num_segments, sparse_gradient)
segment_sum(data, indices, segment_ids, name, num_segments, sparse_gradient)
slice(sp_input, start, size, name)
softmax(sp_input, name)
sparse_dense_matmul(sp_a, b, adjoint_a, adjoint_b, name)
SparseConditionalAccumulator(dtype, shape, shared_name, name, reduction_type)
SparseTensor(indices, values, dense_shape)
split(keyword_required, sp_input, num_split, axis, name, split_dim)
to_dense(sp_input, default_value, validate_indices, name)
to_indicator(sp_input, vocab_size, name)
transpose(sp_input, perm, name)
""",
    "strings": """
as_string(input, precision, scientific, shortest, width, fill, name)
join(inputs, separator, name)
length(input, name, unit)
lower(input, encoding, name)
reduce_join(inputs, axis, keep_dims, separator, name, reduction_indices, keepdims)
regex_full_match(input, pattern, name)
regex_replace(input, pattern, rewrite, replace_global, name)
split(input, sep, maxsplit, result_type, source, name)
strip(input, name)
substr(input, pos, len, name, unit)
to_hash_bucket(string_tensor, num_buckets, name, input)
to_hash_bucket_fast(input, num_buckets, name)
to_hash_bucket_strong(input, num_buckets, key, name)
to_number(string_tensor, out_type, name, input)
upper(input, encoding, name)
""",
    "mixed_precision": """
DynamicLossScale(initial_loss_scale, increment_period, multiplier)
FixedLossScale(loss_scale_value)
LossScale()
MixedPrecisionLossScaleOptimizer(opt, loss_scale)
disable_mixed_precision_graph_rewrite()
enable_mixed_precision_graph_rewrite(opt, loss_scale)
""",
    "train.experimental": """
DynamicLossScale(initial_loss_scale, increment_period, multiplier)
FixedLossScale(loss_scale_value)
LossScale()
MixedPrecisionLossScaleOptimizer(opt, loss_scale)
disable_mixed_precision_graph_rewrite()
enable_mixed_precision_graph_rewrite(opt, loss_scale)
""",
    "train": """
AdadeltaOptimizer(learning_rate, rho, epsilon, use_locking, name)
AdagradDAOptimizer(learning_rate, global_step, initial_gradient_squared_accumulator_value, l1_regularization_strength, l2_regularization_strength, use_locking, name)
AdagradOptimizer(learning_rate, initial_accumulator_value, use_locking, name)
AdamOptimizer(learning_rate, beta1, beta2, epsilon, use_locking, name, use_own_namescope_for_non_slot_vars)
add_queue_runner(qr, collection)
assert_global_step(global_step_tensor)
batch(tensors, batch_size, num_threads, capacity, enqueue_many, shapes, dynamic_pad, allow_smaller_final_batch, shared_name, name)
batch_join(tensors_list, batch_size, capacity, enqueue_many, shapes, dynamic_pad, allow_smaller_final_batch, shared_name, name)
BytesList
checkpoint_exists(checkpoint_prefix)
CheckpointSaverHook(checkpoint_dir, save_secs, save_steps, saver, checkpoint_basename, scaffold, listeners, save_graph_def)
CheckpointSaverListener
ChiefSessionCreator(scaffold, master, config, checkpoint_dir, checkpoint_filename_with_path)
ClusterSpec(cluster)
Coordinator(clean_stop_exception_types)
cosine_decay(learning_rate, global_step, decay_steps, alpha, name)
cosine_decay_restarts(learning_rate, global_step, first_decay_steps, t_mul, m_mul, alpha, name)
create_global_step(graph)
Example
exponential_decay(learning_rate, global_step, decay_steps, decay_rate, staircase, name)
ExponentialMovingAverage(decay, num_updates, zero_debias, name)
export_meta_graph(filename, meta_info_def, graph_def, saver_def, collection_list, as_text, graph, export_scope,
    clear_devices, clear_extraneous_savers, strip_default_attrs, save_debug_info)
Feature
FeatureList
FeatureLists
Features
FeedFnHook(feed_fn)
FinalOpsHook(final_ops, final_ops_feed_dict)
FloatList
FtrlOptimizer(learning_rate, learning_rate_power, initial_accumulator_value, l1_regularization_strength,
    l2_regularization_strength, use_locking, name, accum_name, linear_name,
    l2_shrinkage_regularization_strength, beta)
get_checkpoint_mtimes(checkpoint_prefixes)
get_checkpoint_state(checkpoint_dir, latest_filename)
get_global_step(graph)
get_or_create_global_step(graph)
global_step(sess, global_step_tensor)
GlobalStepWaiterHook(wait_until_step)
GradientDescentOptimizer(learning_rate, use_locking, name)
import_meta_graph(meta_graph_or_file, clear_devices, import_scope)
init_from_checkpoint(ckpt_dir_or_file, assignment_map)
input_producer(input_tensor, element_shape, num_epochs, shuffle, seed, capacity, shared_name, summary_name, name, cancel_op)
Int64List
inverse_time_decay(learning_rate, global_step, decay_steps, decay_rate, staircase, name)
latest_checkpoint(checkpoint_dir, latest_filename)
limit_epochs(tensor, num_epochs, name)
linear_cosine_decay(learning_rate, global_step, decay_steps, num_periods, alpha, beta, name)
list_variables(ckpt_dir_or_file)
load_checkpoint(ckpt_dir_or_file)
load_variable(ckpt_dir_or_file, name)
LoggingTensorHook(tensors, every_n_iter, every_n_secs, at_end, formatter)
match_filenames_once(pattern, name)
maybe_batch(tensors, keep_input, batch_size, num_threads, capacity, enqueue_many, shapes, dynamic_pad, allow_smaller_final_batch, shared_name, name)
maybe_batch_join(tensors_list, keep_input, batch_size, capacity, enqueue_many, shapes, dynamic_pad, allow_smaller_final_batch, shared_name, name)
maybe_shuffle_batch(tensors, batch_size, capacity, min_after_dequeue, keep_input, num_threads, seed, enqueue_many, shapes, allow_smaller_final_batch, shared_name, name)
maybe_shuffle_batch_join(tensors_list, batch_size, capacity, min_after_dequeue, keep_input, seed, enqueue_many, shapes, allow_smaller_final_batch, shared_name, name)
MomentumOptimizer(learning_rate, momentum, use_locking, name, use_nesterov)
MonitoredSession(session_creator, hooks, stop_grace_period_secs)
MonitoredTrainingSession(master, is_chief, checkpoint_dir, scaffold, hooks, chief_only_hooks, save_checkpoint_secs,
    save_summaries_steps, save_summaries_secs, config, stop_grace_period_secs, log_step_count_steps, max_wait_secs,
    save_checkpoint_steps, summary_dir, save_graph_def)
NanLossDuringTrainingError
NanTensorHook(loss_tensor, fail_on_nan_loss)
natural_exp_decay(learning_rate, global_step, decay_steps, decay_rate, staircase, name)
noisy_linear_cosine_decay(learning_rate, global_step, decay_steps, initial_variance, variance_decay,
    num_periods, alpha, beta, name)
NewCheckpointReader(filepattern)
Optimizer(use_locking, name, use_own_namescope_for_non_slot_vars)
piecewise_constant(x, boundaries, values, name)
piecewise_constant_decay(x, boundaries, values, name)
polynomial_decay(learning_rate, global_step, decay_steps, end_learning_rate, power, cycle, name)
ProfilerHook(save_steps, save_secs, output_dir, show_dataflow, show_memory)
ProximalAdagradOptimizer(learning_rate, initial_accumulator_value, l1_regularization_strength,
    l2_regularization_strength, use_locking, name)
ProximalGradientDescentOptimizer(learning_rate, l1_regularization_strength, l2_regularization_strength,
    use_locking, name)
QueueRunner(queue, enqueue_ops, close_op, cancel_op, queue_closed_exception_types, queue_runner_def, import_scope)
range_input_producer(limit, num_epochs, shuffle, seed, capacity, shared_name, name)
remove_checkpoint(checkpoint_prefix, checkpoint_format_version, meta_graph_suffix)
replica_device_setter(ps_tasks, ps_device, worker_device, merge_devices, cluster, ps_ops, ps_strategy)
RMSPropOptimizer(learning_rate, decay, momentum, epsilon, use_locking, centered, name)
Saver(var_list, reshape, sharded, max_to_keep, keep_checkpoint_every_n_hours, name, restore_sequentially,
    saver_def, builder, defer_build, allow_empty, write_version, pad_step_number, save_relative_paths, filename)
SaverDef
Scaffold(init_op, init_feed_dict, init_fn, ready_op, ready_for_local_init_op, local_init_op, summary_op, saver,
    copy_from_scaffold, local_init_feed_dict)
SecondOrStepTimer(every_secs, every_steps)
SequenceExample
Server(server_or_cluster_def, job_name, task_index, protocol, config, start)
SessionCreator
SessionManager(local_init_op, ready_op, ready_for_local_init_op, graph, recovery_wait_secs, local_init_run_options,
    local_init_feed_dict)
SessionRunArgs(fetches, feed_dict, options)
SessionRunContext(original_args, session)
SessionRunHook
SessionRunValues(results, options, run_metadata)
shuffle_batch(tensors, batch_size, capacity, min_after_dequeue, num_threads, seed, enqueue_many, shapes, allow_smaller_final_batch, shared_name, name)
shuffle_batch_join(tensors_list, batch_size, capacity, min_after_dequeue, seed, enqueue_many, shapes, allow_smaller_final_batch, shared_name, name)
SingularMonitoredSession(hooks, scaffold, master, config, checkpoint_dir, stop_grace_period_secs, checkpoint_filename_with_path)
slice_input_producer(tensor_list, num_epochs, shuffle, seed, capacity, shared_name, name)
start_queue_runners(sess, coord, daemon, start, collection)
StepCounterHook(every_n_steps, every_n_secs, output_dir, summary_writer)
StopAtStepHook(num_steps, last_step)
string_input_producer(string_tensor, num_epochs, shuffle, seed, capacity, shared_name, name, cancel_op)
summary_iterator(path)
SummarySaverHook(save_steps, save_secs, output_dir, summary_writer, scaffold, summary_op)
Supervisor(graph, ready_op, ready_for_local_init_op, is_chief, init_op, init_feed_dict, local_init_op, logdir, summary_op,
    saver, global_step, save_summaries_secs, save_model_secs, recovery_wait_secs, stop_grace_secs, checkpoint_basename,
    session_manager, summary_writer, init_fn, local_init_run_options)
SyncReplicasOptimizer(opt, replicas_to_aggregate, total_num_replicas, variable_averages, variables_to_average,
    use_locking, name)
update_checkpoint_state(save_dir, model_checkpoint_path, all_model_checkpoint_paths, latest_filename,
    all_model_checkpoint_timestamps, last_preserved_timestamp)
WorkerSessionCreator(scaffold, master, config, max_wait_secs)
write_graph(graph_or_graph_def, logdir, name, as_text)
""",
    "summary": """
audio(name, tensor, sample_rate, max_outputs, collections, family)
Event
FileWriter(logdir, graph, max_queue, flush_secs, graph_def, filename_suffix, session)
FileWriterCache
get_summary_description(node_def)
histogram(name, values, collections, family)
image(name, tensor, max_outputs, collections, family)
merge(inputs, collections, name)
merge_all(key, scope, name)
scalar(name, tensor, collections, family)
SessionLog
Summary
SummaryDescription
TaggedRunMetadata
tensor_summary(name, tensor, summary_description, collections, summary_metadata, family, display_name)
text(name, tensor, collections)
""",
    "graph_util": """
convert_variables_to_constants(sess, input_graph_def, output_node_names, variable_names_whitelist,
    variable_names_blacklist)
extract_sub_graph(graph_def, dest_nodes)
import_graph_def(graph_def, input_map, return_elements, name, op_dict, producer_op_list)
must_run_on_cpu(node, pin_variables_on_cpu)
remove_training_nodes(input_graph, protected_nodes)
tensor_shape_from_node_def_name(graph, input_name)
""",
    "manip": """
batch_to_space_nd(input, block_shape, crops, name)
gather_nd(params, indices, name, batch_dims, bad_indices_policy)
reshape(tensor, shape, name)
reverse(tensor, axis, name)
roll(input, shift, axis, name)
scatter_nd(indices, updates, shape, bad_indices_policy, name)
space_to_batch_nd(input, block_shape, paddings, name)
tile(input, multiples, name)
""",
    "python_io": """
tf_record_iterator(path, options)
TFRecordCompressionType
TFRecordOptions
TFRecordWriter(path, options)
""",
    "queue": """
FIFOQueue(capacity, dtypes, shapes, names, shared_name, name)
PaddingFIFOQueue(capacity, dtypes, shapes, names, shared_name, name)
PriorityQueue(capacity, types, shapes, names, shared_name, name)
QueueBase(dtypes, shapes, names, queue_ref)
RandomShuffleQueue(capacity, min_after_dequeue, dtypes, shapes, names, seed, shared_name, name)
""",
    "spectral": """
fft(input, name)
fft2d(input, name)
fft3d(input, name)
ifft(input, name)
ifft2d(input, name)
ifft3d(input, name)
irfft(input_tensor, fft_length, name)
irfft2d(input_tensor, fft_length, name)
irfft3d(input_tensor, fft_length, name)
rfft(input_tensor, fft_length, name)
rfft2d(input_tensor, fft_length, name)
rfft3d(input_tensor, fft_length, name)
""",
}
