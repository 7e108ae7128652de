"""The tables of TensorFlow's published messages."""

from __future__ import annotations

from typing import Final

# ── graphs: nodes, attributes, constants, functions, op signatures ────────────────────────────────────────────────────


# Numbered from 1. The reference type of each has its number plus 100.
_TYPES: Final = (
    *("FLOAT", "DOUBLE", "INT32", "UINT8", "INT16", "INT8", "STRING", "COMPLEX64", "INT64", "BOOL", "QINT8"),
    *("QUINT8", "QINT32", "BFLOAT16", "QINT16", "QUINT16", "UINT16", "COMPLEX128", "HALF", "RESOURCE"),
    *("VARIANT", "UINT32", "UINT64", "FLOAT8_E5M2", "FLOAT8_E4M3FN", "FLOAT8_E4M3FNUZ", "FLOAT8_E4M3B11FNUZ"),
    *("FLOAT8_E5M2FNUZ", "INT4", "UINT4", "INT2", "UINT2", "FLOAT4_E2M1FN"),
)
_DATA_TYPE: Final = "; ".join(
    ["0 DT_INVALID"]
    + [f"{number} DT_{name}" for number, name in enumerate(_TYPES, 1)]
    + [f"{number} DT_{name}_REF" for number, name in enumerate(_TYPES, 101)]
)

GRAPHS: Final = (
    f"""
enum DataType: {_DATA_TYPE}
"""
    + """
GraphDef: 1 node NodeDef*; 2 library FunctionDefLibrary; 3 version int32; 4 versions VersionDef;
    5 debug_info GraphDebugInfo
NodeDef: 1 name string; 2 op string; 3 input string*; 4 device string; 5 attr <string,AttrValue>;
    6 experimental_debug_info NodeDef.ExperimentalDebugInfo; 7 experimental_type FullTypeDef
AttrValue: value { 1 list AttrValue.ListValue; 2 s bytes; 3 i int64; 4 f float; 5 b bool; 6 type DataType;
    7 shape TensorShapeProto; 8 tensor TensorProto; 9 placeholder string; 10 func NameAttrList }
TensorShapeProto: 2 dim TensorShapeProto.Dim*; 3 unknown_rank bool
TensorShapeProto.Dim: 1 size int64; 2 name string
TensorProto: 1 dtype DataType; 2 tensor_shape TensorShapeProto; 3 version_number int32; 4 tensor_content bytes;
    5 float_val float*; 6 double_val double*; 7 int_val int32*; 8 string_val bytes*; 9 scomplex_val float*;
    10 int64_val int64*; 11 bool_val bool*; 12 dcomplex_val double*; 13 half_val int32*;
    14 resource_handle_val ResourceHandleProto*; 15 variant_val VariantTensorDataProto*; 16 uint32_val uint32*;
    17 uint64_val uint64*; 18 float8_val bytes
ResourceHandleProto: 1 device string; 2 container string; 3 name string; 4 hash_code uint64; 5 maybe_type_name string;
    6 dtypes_and_shapes ResourceHandleProto.DtypeAndShape*
ResourceHandleProto.DtypeAndShape: 1 dtype DataType; 2 shape TensorShapeProto
VariantTensorDataProto: 1 type_name string; 2 metadata bytes; 3 tensors TensorProto*
AttrValue.ListValue: 2 s bytes*; 3 i int64*; 4 f float*; 5 b bool*; 6 type DataType*; 7 shape TensorShapeProto*;
    8 tensor TensorProto*; 9 func NameAttrList*
NameAttrList: 1 name string; 2 attr <string,AttrValue>
NodeDef.ExperimentalDebugInfo: 1 original_node_names string*; 2 original_func_names string*
FullTypeDef: 1 type_id FullTypeId; 2 args FullTypeDef*; attr { 3 s string; 4 i int64 }
VersionDef: 1 producer int32; 2 min_consumer int32; 3 bad_consumers int32*
FunctionDefLibrary: 1 function FunctionDef*; 2 gradient GradientDef*; 3 registered_gradients RegisteredGradient*
FunctionDef: 1 signature OpDef; 3 node_def NodeDef*; 4 ret <string,string>; 5 attr <string,AttrValue>;
    6 control_ret <string,string>; 7 arg_attr <uint32,FunctionDef.ArgAttrs>; 8 resource_arg_unique_id <uint32,uint32>
OpDef: 1 name string; 2 input_arg OpDef.ArgDef*; 3 output_arg OpDef.ArgDef*; 4 attr OpDef.AttrDef*; 5 summary string;
    6 description string; 8 deprecation OpDeprecation; 16 is_aggregate bool; 17 is_stateful bool;
    18 is_commutative bool; 19 allows_uninitialized_input bool; 20 control_output string*;
    21 is_distributed_communication bool
OpDef.ArgDef: 1 name string; 2 description string; 3 type DataType; 4 type_attr string; 5 number_attr string;
    6 type_list_attr string; 7 handle_data ResourceHandleProto.DtypeAndShape*; 16 is_ref bool;
    17 experimental_full_type FullTypeDef
OpDef.AttrDef: 1 name string; 2 type string; 3 default_value AttrValue; 4 description string; 5 has_minimum bool;
    6 minimum int64; 7 allowed_values AttrValue
OpDeprecation: 1 version int32; 2 explanation string
FunctionDef.ArgAttrs: 1 attr <string,AttrValue>
GradientDef: 1 function_name string; 2 gradient_func string
RegisteredGradient: 1 gradient_func string; 2 registered_op_type string
GraphDebugInfo: 1 files string*; 2 traces <string,GraphDebugInfo.StackTrace>;
    4 frames_by_id <fixed64,GraphDebugInfo.FileLineCol>; 5 name_to_trace_id <string,fixed64>;
    6 traces_by_id <fixed64,GraphDebugInfo.StackTrace>
GraphDebugInfo.FileLineCol: 1 file_index int32; 2 line int32; 3 col int32; 4 func string; 5 code string
GraphDebugInfo.StackTrace: 1 file_line_cols GraphDebugInfo.FileLineCol*; 2 frame_id fixed64*
OpList: 1 op OpDef*
enum FullTypeId: 0 TFT_UNSET; 1 TFT_VAR; 2 TFT_ANY; 3 TFT_PRODUCT; 4 TFT_NAMED; 20 TFT_FOR_EACH; 100 TFT_CALLABLE;
    200 TFT_BOOL; 201 TFT_UINT8; 202 TFT_UINT16; 203 TFT_UINT32; 204 TFT_UINT64; 205 TFT_INT8; 206 TFT_INT16;
    207 TFT_INT32; 208 TFT_INT64; 209 TFT_HALF; 210 TFT_FLOAT; 211 TFT_DOUBLE; 212 TFT_COMPLEX64; 213 TFT_COMPLEX128;
    214 TFT_STRING; 215 TFT_BFLOAT16; 1000 TFT_TENSOR; 1001 TFT_ARRAY; 1002 TFT_OPTIONAL; 1003 TFT_LITERAL;
    1004 TFT_ENCODED; 1005 TFT_SHAPE_TENSOR; 10102 TFT_DATASET; 10103 TFT_RAGGED; 10104 TFT_ITERATOR;
    10202 TFT_MUTEX_LOCK; 10203 TFT_LEGACY_VARIANT
"""
)


# ── saved models, checkpoints and training programs ───────────────────────────────────────────────────────────────────


MODELS: Final = """
MetaGraphDef: 1 meta_info_def MetaGraphDef.MetaInfoDef; 2 graph_def GraphDef; 3 saver_def SaverDef;
    4 collection_def <string,CollectionDef>; 5 signature_def <string,SignatureDef>; 6 asset_file_def AssetFileDef*;
    7 object_graph_def SavedObjectGraph
MetaGraphDef.MetaInfoDef: 1 meta_graph_version string; 2 stripped_op_list OpList; 3 any_info google.protobuf.Any;
    4 tags string*; 5 tensorflow_version string; 6 tensorflow_git_version string; 7 stripped_default_attrs bool;
    8 function_aliases <string,string>
SaverDef: 1 filename_tensor_name string; 2 save_tensor_name string; 3 restore_op_name string; 4 max_to_keep int32;
    5 sharded bool; 6 keep_checkpoint_every_n_hours float; 7 version SaverDef.CheckpointFormatVersion
CollectionDef: kind { 1 node_list CollectionDef.NodeList; 2 bytes_list CollectionDef.BytesList;
    3 int64_list CollectionDef.Int64List; 4 float_list CollectionDef.FloatList; 5 any_list CollectionDef.AnyList }
CollectionDef.NodeList: 1 value string*
CollectionDef.BytesList: 1 value bytes*
CollectionDef.Int64List: 1 value int64*
CollectionDef.FloatList: 1 value float*
CollectionDef.AnyList: 1 value google.protobuf.Any*
SignatureDef: 1 inputs <string,TensorInfo>; 2 outputs <string,TensorInfo>; 3 method_name string;
    4 defaults <string,TensorProto>
TensorInfo: encoding { 1 name string; 4 coo_sparse TensorInfo.CooSparse; 5 composite_tensor TensorInfo.CompositeTensor
    }; 2 dtype DataType; 3 tensor_shape TensorShapeProto
TensorInfo.CooSparse: 1 values_tensor_name string; 2 indices_tensor_name string; 3 dense_shape_tensor_name string
TensorInfo.CompositeTensor: 1 type_spec TypeSpecProto; 2 components TensorInfo*
TypeSpecProto: 1 type_spec_class TypeSpecProto.TypeSpecClass; 2 type_state StructuredValue;
    3 type_spec_class_name string; 4 num_flat_components int32
StructuredValue: kind { 1 none_value NoneValue; 11 float64_value double; 12 int64_value sint64;
    13 string_value string; 14 bool_value bool; 31 tensor_shape_value TensorShapeProto;
    32 tensor_dtype_value DataType; 33 tensor_spec_value TensorSpecProto; 34 type_spec_value TypeSpecProto;
    35 bounded_tensor_spec_value BoundedTensorSpecProto; 51 list_value ListValue; 52 tuple_value TupleValue;
    53 dict_value DictValue; 54 named_tuple_value NamedTupleValue; 55 tensor_value TensorProto;
    56 numpy_value TensorProto }
NoneValue:
TensorSpecProto: 1 name string; 2 shape TensorShapeProto; 3 dtype DataType
BoundedTensorSpecProto: 1 name string; 2 shape TensorShapeProto; 3 dtype DataType; 4 minimum TensorProto;
    5 maximum TensorProto
ListValue: 1 values StructuredValue*
TupleValue: 1 values StructuredValue*
DictValue: 1 fields <string,StructuredValue>
NamedTupleValue: 1 name string; 2 values PairValue*
PairValue: 1 key string; 2 value StructuredValue
AssetFileDef: 1 tensor_info TensorInfo; 2 filename string
SavedObjectGraph: 1 nodes SavedObject*; 2 concrete_functions <string,SavedConcreteFunction>
SavedObject: 1 children TrackableObjectGraph.TrackableObject.ObjectReference*;
    3 slot_variables TrackableObjectGraph.TrackableObject.SlotVariableReference*; kind {
    4 user_object SavedUserObject; 5 asset SavedAsset; 6 function SavedFunction; 7 variable SavedVariable;
    8 bare_concrete_function SavedBareConcreteFunction; 9 constant SavedConstant; 10 resource SavedResource;
    12 captured_tensor CapturedTensor }; 11 saveable_objects <string,SaveableObject>; 13 registered_name string;
    14 serialized_user_proto google.protobuf.Any;
    15 dependencies TrackableObjectGraph.TrackableObject.ObjectReference*; 16 registered_saver string
TrackableObjectGraph.TrackableObject.ObjectReference: 1 node_id int32; 2 local_name string
TrackableObjectGraph.TrackableObject.SlotVariableReference: 1 original_variable_node_id int32; 2 slot_name string;
    3 slot_variable_node_id int32
SavedUserObject: 1 identifier string; 2 version VersionDef; 3 metadata string
SavedAsset: 1 asset_file_def_index int32
SavedFunction: 1 concrete_functions string*; 2 function_spec FunctionSpec
FunctionSpec: 1 fullargspec StructuredValue; 2 is_method bool; 5 input_signature StructuredValue;
    6 jit_compile FunctionSpec.JitCompile
SavedVariable: 1 dtype DataType; 2 shape TensorShapeProto; 3 trainable bool;
    4 synchronization VariableSynchronization; 5 aggregation VariableAggregation; 6 name string; 7 device string;
    8 experimental_distributed_variable_components SavedVariable*
SavedBareConcreteFunction: 1 concrete_function_name string; 2 argument_keywords string*;
    3 allowed_positional_arguments int64; 4 function_spec FunctionSpec
SavedConstant: 1 operation string
SavedResource: 1 device string
CapturedTensor: 1 name string; 2 concrete_function string
SaveableObject: 2 save_function int32; 3 restore_function int32
SavedConcreteFunction: 2 bound_inputs int32*; 3 canonicalized_input_signature StructuredValue;
    4 output_signature StructuredValue
SavedModel: 1 saved_model_schema_version int64; 2 meta_graphs MetaGraphDef*
TrackableObjectGraph: 1 nodes TrackableObjectGraph.TrackableObject*
TrackableObjectGraph.TrackableObject: 1 children TrackableObjectGraph.TrackableObject.ObjectReference*;
    2 attributes TrackableObjectGraph.TrackableObject.SerializedTensor*;
    3 slot_variables TrackableObjectGraph.TrackableObject.SlotVariableReference*; 4 registered_saver RegisteredSaver;
    5 has_checkpoint_values google.protobuf.BoolValue
TrackableObjectGraph.TrackableObject.SerializedTensor: 1 name string; 2 full_name string; 3 checkpoint_key string
RegisteredSaver: 1 name string; 2 object_name string
TensorSliceProto: 1 extent TensorSliceProto.Extent*
TensorSliceProto.Extent: 1 start int64; has_length_hack { 2 length int64 }
CheckpointState: 1 model_checkpoint_path string; 2 all_model_checkpoint_paths string*;
    3 all_model_checkpoint_timestamps double*; 4 last_preserved_timestamp double
VariableDef: 1 variable_name string; 2 initializer_name string; 3 snapshot_name string;
    4 save_slice_info_def SaveSliceInfoDef; 5 is_resource bool; 6 initial_value_name string; 7 trainable bool;
    8 synchronization VariableSynchronization; 9 aggregation VariableAggregation
SaveSliceInfoDef: 1 full_name string; 2 full_shape int64*; 3 var_offset int64*; 4 var_shape int64*
QueueRunnerDef: 1 queue_name string; 2 enqueue_op_name string*; 3 close_op_name string; 4 cancel_op_name string;
    5 queue_closed_exception_types error.Code*
CondContextDef: 1 context_name string; 2 pred_name string; 3 pivot_name string; 4 branch int32;
    5 values_def ValuesDef; 6 nested_contexts ControlFlowContextDef*
ValuesDef: 1 values string*; 2 external_values <string,string>
ControlFlowContextDef: ctxt { 1 cond_ctxt CondContextDef; 2 while_ctxt WhileContextDef }
WhileContextDef: 1 context_name string; 2 parallel_iterations int32; 3 back_prop bool; 4 swap_memory bool;
    5 pivot_name string; 6 pivot_for_pred_name string; 7 pivot_for_body_name string; 8 loop_exit_names string*;
    9 values_def ValuesDef; 10 loop_enter_names string*; 11 maximum_iterations_name string;
    12 nested_contexts ControlFlowContextDef*
FingerprintDef: 1 saved_model_checksum uint64; 2 graph_def_program_hash uint64; 3 signature_def_hash uint64;
    4 saved_object_graph_hash uint64; 5 checkpoint_hash uint64; 6 version VersionDef; 7 uuid string
BundleHeaderProto: 1 num_shards int32; 2 endianness BundleHeaderProto.Endianness; 3 version VersionDef
BundleEntryProto: 1 dtype DataType; 2 shape TensorShapeProto; 3 shard_id int32; 4 offset int64; 5 size int64;
    6 crc32c fixed32; 7 slices TensorSliceProto*
SavedSliceMeta: 1 name string; 2 shape TensorShapeProto; 3 type DataType; 4 slice TensorSliceProto*
SavedTensorSliceMeta: 1 tensor SavedSliceMeta*; 2 versions VersionDef
SavedSlice: 1 name string; 2 slice TensorSliceProto; 3 data TensorProto
SavedTensorSlices: 1 meta SavedTensorSliceMeta; 2 data SavedSlice
enum SaverDef.CheckpointFormatVersion: 0 LEGACY; 1 V1; 2 V2
enum TypeSpecProto.TypeSpecClass: 0 UNKNOWN; 1 SPARSE_TENSOR_SPEC; 2 INDEXED_SLICES_SPEC; 3 RAGGED_TENSOR_SPEC;
    4 TENSOR_ARRAY_SPEC; 5 DATA_DATASET_SPEC; 6 DATA_ITERATOR_SPEC; 7 OPTIONAL_SPEC; 8 PER_REPLICA_SPEC;
    9 VARIABLE_SPEC; 10 ROW_PARTITION_SPEC; 12 REGISTERED_TYPE_SPEC; 13 EXTENSION_TYPE_SPEC
enum FunctionSpec.JitCompile: 0 DEFAULT; 1 ON; 2 OFF
enum VariableSynchronization: 0 VARIABLE_SYNCHRONIZATION_AUTO; 1 VARIABLE_SYNCHRONIZATION_NONE;
    2 VARIABLE_SYNCHRONIZATION_ON_WRITE; 3 VARIABLE_SYNCHRONIZATION_ON_READ
enum VariableAggregation: 0 VARIABLE_AGGREGATION_NONE; 1 VARIABLE_AGGREGATION_SUM; 2 VARIABLE_AGGREGATION_MEAN;
    3 VARIABLE_AGGREGATION_ONLY_FIRST_REPLICA
enum BundleHeaderProto.Endianness: 0 LITTLE; 1 BIG
"""

# The error codes belong to the package `tensorflow.error`.
ERRORS: Final = """
enum Code: 0 OK; 1 CANCELLED; 2 UNKNOWN; 3 INVALID_ARGUMENT; 4 DEADLINE_EXCEEDED; 5 NOT_FOUND; 6 ALREADY_EXISTS;
    7 PERMISSION_DENIED; 8 RESOURCE_EXHAUSTED; 9 FAILED_PRECONDITION; 10 ABORTED; 11 OUT_OF_RANGE; 12 UNIMPLEMENTED;
    13 INTERNAL; 14 UNAVAILABLE; 15 DATA_LOSS; 16 UNAUTHENTICATED;
    20 DO_NOT_USE_RESERVED_FOR_FUTURE_EXPANSION_USE_DEFAULT_IN_SWITCH_INSTEAD_
"""


# ── event files that TensorBoard reads: summaries, graphs, and measurements of traced steps ───────────────────────────


EVENTS: Final = """
Event: 1 wall_time double; 2 step int64; what { 3 file_version string; 4 graph_def bytes; 5 summary Summary;
    6 log_message LogMessage; 7 session_log SessionLog; 8 tagged_run_metadata TaggedRunMetadata;
    9 meta_graph_def bytes }; 10 source_metadata SourceMetadata
SourceMetadata: 1 writer string
LogMessage: 1 level LogMessage.Level; 2 message string
SessionLog: 1 status SessionLog.SessionStatus; 2 checkpoint_path string; 3 msg string
TaggedRunMetadata: 1 tag string; 2 run_metadata bytes
Summary: 1 value Summary.Value*
Summary.Value: 7 node_name string; 1 tag string; 9 metadata SummaryMetadata; value { 2 simple_value float;
    3 obsolete_old_style_histogram bytes; 4 image Summary.Image; 5 histo HistogramProto; 6 audio Summary.Audio;
    8 tensor TensorProto }
Summary.Image: 1 height int32; 2 width int32; 3 colorspace int32; 4 encoded_image_string bytes
Summary.Audio: 1 sample_rate float; 2 num_channels int64; 3 length_frames int64; 4 encoded_audio_string bytes;
    5 content_type string
SummaryMetadata: 1 plugin_data SummaryMetadata.PluginData; 2 display_name string; 3 summary_description string;
    4 data_class DataClass
SummaryMetadata.PluginData: 1 plugin_name string; 2 content bytes
SummaryDescription: 1 type_hint string
HistogramProto: 1 min double; 2 max double; 3 num double; 4 sum double; 5 sum_squares double; 6 bucket_limit double*;
    7 bucket double*
RunMetadata: 1 step_stats StepStats; 2 cost_graph CostGraphDef; 3 partition_graphs GraphDef*;
    4 function_graphs RunMetadata.FunctionGraphs*; 5 session_metadata SessionMetadata
RunMetadata.FunctionGraphs: 1 partition_graphs GraphDef*; 2 pre_optimization_graph GraphDef;
    3 post_optimization_graph GraphDef
SessionMetadata: 1 name string; 2 version int64
StepStats: 1 dev_stats DeviceStepStats*
DeviceStepStats: 1 device string; 2 node_stats NodeExecStats*; 3 thread_names <uint32,string>
NodeExecStats: 1 node_name string; 2 all_start_micros int64; 3 op_start_rel_micros int64; 4 op_end_rel_micros int64;
    5 all_end_rel_micros int64; 6 memory AllocatorMemoryUsed*; 7 output NodeOutput*; 8 timeline_label string;
    9 scheduled_micros int64; 10 thread_id uint32; 11 referenced_tensor AllocationDescription*;
    12 memory_stats MemoryStats; 13 all_start_nanos int64; 14 op_start_rel_nanos int64; 15 op_end_rel_nanos int64;
    16 all_end_rel_nanos int64; 17 scheduled_nanos int64
AllocatorMemoryUsed: 1 allocator_name string; 2 total_bytes int64; 3 peak_bytes int64; 4 live_bytes int64;
    6 allocation_records AllocationRecord*; 5 allocator_bytes_in_use int64
AllocationRecord: 1 alloc_micros int64; 2 alloc_bytes int64
NodeOutput: 1 slot int32; 3 tensor_description TensorDescription
TensorDescription: 1 dtype DataType; 2 shape TensorShapeProto; 4 allocation_description AllocationDescription
AllocationDescription: 1 requested_bytes int64; 2 allocated_bytes int64; 3 allocator_name string;
    4 allocation_id int64; 5 has_single_reference bool; 6 ptr uint64
MemoryStats: 1 temp_memory_size int64; 3 persistent_memory_size int64; 5 persistent_tensor_alloc_ids int64*;
    2 device_temp_memory_size int64; 4 device_persistent_memory_size int64;
    6 device_persistent_tensor_alloc_ids int64*
CostGraphDef: 1 node CostGraphDef.Node*; 2 cost CostGraphDef.AggregatedCost*
CostGraphDef.Node: 1 name string; 2 device string; 3 id int32; 4 input_info CostGraphDef.Node.InputInfo*;
    5 output_info CostGraphDef.Node.OutputInfo*; 6 temporary_memory_size int64; 12 persistent_memory_size int64;
    10 host_temp_memory_size int64; 11 device_temp_memory_size int64; 16 device_persistent_memory_size int64;
    9 compute_cost int64; 14 compute_time int64; 15 memory_time int64; 7 is_final bool; 8 control_input int32*;
    17 inaccurate bool
CostGraphDef.Node.InputInfo: 1 preceding_node int32; 2 preceding_port int32
CostGraphDef.Node.OutputInfo: 1 size int64; 2 alias_input_port int64; 3 shape TensorShapeProto; 4 dtype DataType
CostGraphDef.AggregatedCost: 1 cost float; 2 dimension string
enum SessionLog.SessionStatus: 0 STATUS_UNSPECIFIED; 1 START; 2 STOP; 3 CHECKPOINT
enum DataClass: 0 DATA_CLASS_UNKNOWN; 1 DATA_CLASS_SCALAR; 2 DATA_CLASS_TENSOR; 3 DATA_CLASS_BLOB_SEQUENCE
enum LogMessage.Level: 0 UNKNOWN; 10 DEBUGGING; 20 INFO; 30 WARN; 40 ERROR; 50 FATAL
"""


# ── settings of sessions ──────────────────────────────────────────────────────────────────────────────────────────────


SETTINGS: Final = """
ConfigProto: 1 device_count <string,int32>; 2 intra_op_parallelism_threads int32; 5 inter_op_parallelism_threads int32;
    9 use_per_session_threads bool; 12 session_inter_op_thread_pool ThreadPoolOptionProto*; 3 placement_period int32;
    4 device_filters string*; 6 gpu_options GPUOptions; 18 pluggable_device_options GPUOptions;
    7 allow_soft_placement bool; 8 log_device_placement bool; 10 graph_options GraphOptions;
    11 operation_timeout_in_ms int64; 13 rpc_options RPCOptions; 14 cluster_def ClusterDef;
    15 isolate_session_state bool; 17 share_cluster_devices_in_session bool; 16 experimental ConfigProto.Experimental
ThreadPoolOptionProto: 1 num_threads int32; 2 global_name string
GPUOptions: 1 per_process_gpu_memory_fraction double; 4 allow_growth bool; 2 allocator_type string;
    3 deferred_deletion_bytes int64; 5 visible_device_list string; 6 polling_active_delay_usecs int32;
    7 polling_inactive_delay_msecs int32; 8 force_gpu_compatible bool; 9 experimental GPUOptions.Experimental
GPUOptions.Experimental: 1 virtual_devices GPUOptions.Experimental.VirtualDevices*;
    15 num_virtual_devices_per_gpu int32; 2 use_unified_memory bool; 3 num_dev_to_dev_copy_streams int32;
    4 collective_ring_order string; 5 timestamped_allocator bool; 7 kernel_tracker_max_interval int32;
    8 kernel_tracker_max_bytes int32; 9 kernel_tracker_max_pending int32; 10 internal_fragmentation_fraction double;
    11 use_cuda_malloc_async bool; 12 disallow_retry_on_allocation_failure bool; 13 gpu_host_mem_limit_in_mb float;
    14 gpu_host_mem_disallow_growth bool; 16 gpu_system_memory_size_in_mb int32;
    17 populate_pjrt_gpu_client_creation_info bool; 18 node_id int32;
    19 stream_merge_options GPUOptions.Experimental.StreamMergeOptions
GPUOptions.Experimental.VirtualDevices: 1 memory_limit_mb float*; 2 priority int32*; 3 device_ordinal int32*
GPUOptions.Experimental.StreamMergeOptions: 1 merge_host_to_device_stream bool; 2 merge_device_to_host_stream bool;
    3 merge_device_to_device_stream bool
GraphOptions: 2 enable_recv_scheduling bool; 3 optimizer_options OptimizerOptions; 4 build_cost_model int64;
    9 build_cost_model_after int64; 5 infer_shapes bool; 6 place_pruned_graph bool; 7 enable_bfloat16_sendrecv bool;
    8 timeline_step int32; 10 rewrite_options RewriterConfig
OptimizerOptions: 1 do_common_subexpression_elimination bool; 2 do_constant_folding bool;
    6 max_folded_constant_in_bytes int64; 4 do_function_inlining bool; 3 opt_level OptimizerOptions.Level;
    5 global_jit_level OptimizerOptions.GlobalJitLevel; 7 cpu_global_jit bool
RewriterConfig: 50 cpu_layout_conversion RewriterConfig.CpuLayout; 1 layout_optimizer RewriterConfig.Toggle;
    3 constant_folding RewriterConfig.Toggle; 13 shape_optimization RewriterConfig.Toggle;
    14 remapping RewriterConfig.Toggle; 24 common_subgraph_elimination RewriterConfig.Toggle;
    7 arithmetic_optimization RewriterConfig.Toggle; 8 dependency_optimization RewriterConfig.Toggle;
    9 loop_optimization RewriterConfig.Toggle; 10 function_optimization RewriterConfig.Toggle;
    11 debug_stripper RewriterConfig.Toggle; 2 disable_model_pruning bool;
    15 scoped_allocator_optimization RewriterConfig.Toggle; 18 pin_to_host_optimization RewriterConfig.Toggle;
    22 implementation_selector RewriterConfig.Toggle; 23 auto_mixed_precision RewriterConfig.Toggle;
    25 auto_mixed_precision_mkl RewriterConfig.Toggle; 31 auto_mixed_precision_onednn_bfloat16 RewriterConfig.Toggle;
    29 auto_mixed_precision_cpu RewriterConfig.Toggle; 19 disable_meta_optimizer bool; 32 disable_tfg_optimizer bool;
    28 use_plugin_optimizers RewriterConfig.Toggle; 30 experimental_conditional_code_motion RewriterConfig.Toggle;
    12 meta_optimizer_iterations RewriterConfig.NumIterationsType; 17 min_graph_nodes int32;
    26 experimental_disable_compressed_tensor_optimization bool;
    27 experimental_disable_folding_quantization_emulation bool; 4 memory_optimization RewriterConfig.MemOptType;
    6 memory_optimizer_target_node_name_scope string; 20 meta_optimizer_timeout_ms int64;
    5 auto_parallel AutoParallelOptions; 21 fail_on_optimizer_errors bool;
    16 scoped_allocator_opts ScopedAllocatorOptions; 100 optimizers string*;
    200 custom_optimizers RewriterConfig.CustomGraphOptimizer*; 300 inter_optimizer_verifier_config VerifierConfig;
    301 post_optimization_verifier_config VerifierConfig
AutoParallelOptions: 1 enable bool; 2 num_replicas int32
ScopedAllocatorOptions: 1 enable_op string*
RewriterConfig.CustomGraphOptimizer: 1 name string; 2 parameter_map <string,AttrValue>
VerifierConfig: 1 verification_timeout_in_ms int64; 2 structure_verifier VerifierConfig.Toggle
RPCOptions: 1 use_rpc_for_inprocess_master bool; 2 compression_algorithm string; 3 compression_level int32;
    4 cache_rpc_response bool; 5 disable_session_connection_sharing bool; 6 num_channels_per_target int32
ClusterDef: 1 job JobDef*
JobDef: 1 name string; 2 tasks <int32,string>
ConfigProto.Experimental: 1 collective_group_leader string; 3 executor_type string; 4 recv_buf_max_chunk int32;
    5 use_numa_affinity bool; 6 collective_deterministic_sequential_execution bool; 7 collective_nccl bool;
    8 share_session_state_in_clusterspec_propagation bool; 9 disable_thread_spinning bool;
    10 share_cluster_devices_in_session bool; 11 session_metadata SessionMetadata; 12 optimize_for_static_graph bool;
    13 enable_mlir_bridge bool; 17 mlir_bridge_rollout ConfigProto.Experimental.MlirBridgeRollout;
    16 enable_mlir_graph_optimization bool; 14 disable_output_partition_graphs bool;
    15 xla_fusion_autotuner_thresh int64; 18 use_tfrt bool; 27 enable_multi_host bool; 32 tfrt_use_ifrt bool;
    28 backend_server_port int32; 29 target_tpu bool; 30 target_gpu bool; 31 stream_merge_threshold int32;
    21 disable_functional_ops_lowering bool; 22 xla_prefer_single_graph_cluster bool;
    23 coordination_config CoordinationServiceConfig; 24 disable_optimize_for_static_graph bool;
    26 disable_eager_executor_streaming_enqueue bool; 33 finalize_function_library_runtime bool;
    34 finalize_resource_manager bool; 35 tf2xla_dump_dir string; 36 online_cost_analysis bool
CoordinationServiceConfig: 1 service_type string; 2 service_leader string; 3 enable_health_check bool;
    4 cluster_register_timeout_in_ms int64; 14 cluster_register_with_barrier bool; 5 heartbeat_timeout_in_ms int64;
    10 coordinated_job_list CoordinatedJob*; 7 shutdown_barrier_timeout_in_ms int64;
    8 agent_destruction_without_shutdown bool; 9 recoverable_jobs string*; 11 allow_new_incarnation_to_reconnect bool;
    12 force_disable bool; 13 poll_for_error_from_service_at_startup bool
CoordinatedJob: 1 name string; 2 num_tasks int32
enum OptimizerOptions.Level: 0 L1; -1 L0
enum OptimizerOptions.GlobalJitLevel: 0 DEFAULT; -1 OFF; 1 ON_1; 2 ON_2
enum RewriterConfig.CpuLayout: 0 NO_CONVERSION_ON_CPU; 1 NCHW_TO_NHWC; 2 NHWC_TO_NCHW
enum RewriterConfig.Toggle: 0 DEFAULT; 1 ON; 2 OFF; 3 AGGRESSIVE; 4 EXPERIMENTAL_MLIR; 5 EXPERIMENTAL_BOTH
enum RewriterConfig.NumIterationsType: 0 DEFAULT_NUM_ITERS; 1 ONE; 2 TWO
enum RewriterConfig.MemOptType: 0 DEFAULT_MEM_OPT; 1 NO_MEM_OPT; 2 MANUAL; 4 SWAPPING_HEURISTICS;
    5 RECOMPUTATION_HEURISTICS; 6 SCHEDULING_HEURISTICS; 3 HEURISTICS
enum VerifierConfig.Toggle: 0 DEFAULT; 1 ON; 2 OFF
enum ConfigProto.Experimental.MlirBridgeRollout: 0 MLIR_BRIDGE_ROLLOUT_UNSPECIFIED; 1 MLIR_BRIDGE_ROLLOUT_ENABLED;
    2 MLIR_BRIDGE_ROLLOUT_DISABLED
"""
