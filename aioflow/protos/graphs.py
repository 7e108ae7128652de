"""Messages that describe graphs: nodes, attributes, constants, functions, op signatures."""

from __future__ import annotations

from typing import Final

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

MESSAGES: Final = (
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
