"""Messages of saved models, checkpoints and training programs."""

from __future__ import annotations

from typing import Final

MESSAGES: Final = """
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
