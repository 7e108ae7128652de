"""The messages and services of the gRPC APIs that the server implements.

These are the Open Inference Protocol with Triton's repository and statistics extensions, and gRPC's own health checking
and reflection.

A table declares them in a separate descriptor pool, so that a client with compiled copies can run in the same process.
protobuf is imported on first use.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from aioflow.concurrency.forking import not_forked
from aioflow.protos.messages import Message
from aioflow.serve.protocol import MalformedRequestError

Fields: TypeAlias = Mapping[str, Any]  # of a message, for its constructor

PACKAGE: Final = "inference"
_MAKING: Final = threading.RLock()  # one pool only: classes of two pools are incompatible
MESSAGES: Final = """
ServerLiveRequest:
ServerLiveResponse: 1 live bool
ServerReadyRequest:
ServerReadyResponse: 1 ready bool
ModelReadyRequest: 1 name string; 2 version string
ModelReadyResponse: 1 ready bool
ServerMetadataRequest:
ServerMetadataResponse: 1 name string; 2 version string; 3 extensions string*
ModelMetadataRequest: 1 name string; 2 version string
ModelMetadataResponse: 1 name string; 2 versions string*; 3 platform string;
    4 inputs ModelMetadataResponse.TensorMetadata*; 5 outputs ModelMetadataResponse.TensorMetadata*
ModelMetadataResponse.TensorMetadata: 1 name string; 2 datatype string; 3 shape int64*
InferParameter: parameter_choice { 1 bool_param bool; 2 int64_param int64; 3 string_param string; 4 double_param double;
    5 uint64_param uint64 }
InferTensorContents: 1 bool_contents bool*; 2 int_contents int32*; 3 int64_contents int64*; 4 uint_contents uint32*;
    5 uint64_contents uint64*; 6 fp32_contents float*; 7 fp64_contents double*; 8 bytes_contents bytes*
ModelInferRequest: 1 model_name string; 2 model_version string; 3 id string; 4 parameters <string,InferParameter>;
    5 inputs ModelInferRequest.InferInputTensor*; 6 outputs ModelInferRequest.InferRequestedOutputTensor*;
    7 raw_input_contents bytes*
ModelInferRequest.InferInputTensor: 1 name string; 2 datatype string; 3 shape int64*;
    4 parameters <string,InferParameter>; 5 contents InferTensorContents
ModelInferRequest.InferRequestedOutputTensor: 1 name string; 2 parameters <string,InferParameter>
ModelInferResponse: 1 model_name string; 2 model_version string; 3 id string; 4 parameters <string,InferParameter>;
    5 outputs ModelInferResponse.InferOutputTensor*; 6 raw_output_contents bytes*
ModelInferResponse.InferOutputTensor: 1 name string; 2 datatype string; 3 shape int64*;
    4 parameters <string,InferParameter>; 5 contents InferTensorContents
ModelStreamInferResponse: 1 error_message string; 2 infer_response ModelInferResponse
ModelRepositoryParameter: parameter_choice { 1 bool_param bool; 2 int64_param int64; 3 string_param string;
    4 bytes_param bytes }
RepositoryIndexRequest: 1 repository_name string; 2 ready bool
RepositoryIndexResponse: 1 models RepositoryIndexResponse.ModelIndex*
RepositoryIndexResponse.ModelIndex: 1 name string; 2 version string; 3 state string; 4 reason string
RepositoryModelLoadRequest: 1 repository_name string; 2 model_name string;
    3 parameters <string,ModelRepositoryParameter>
RepositoryModelLoadResponse:
RepositoryModelUnloadRequest: 1 repository_name string; 2 model_name string;
    3 parameters <string,ModelRepositoryParameter>
RepositoryModelUnloadResponse:
ModelStatisticsRequest: 1 name string; 2 version string
ModelStatisticsResponse: 1 model_stats ModelStatistics*
ModelStatistics: 1 name string; 2 version string; 3 last_inference uint64; 4 inference_count uint64;
    5 execution_count uint64; 6 inference_stats InferStatistics; 7 batch_stats InferBatchStatistics*
InferStatistics: 1 success StatisticDuration; 2 fail StatisticDuration; 3 queue StatisticDuration;
    4 compute_input StatisticDuration; 5 compute_infer StatisticDuration; 6 compute_output StatisticDuration;
    7 cache_hit StatisticDuration; 8 cache_miss StatisticDuration
StatisticDuration: 1 count uint64; 2 ns uint64
ModelConfigRequest: 1 name string; 2 version string
ModelConfigResponse: 1 config ModelConfig
ModelConfig: 1 name string; 2 platform string; 4 max_batch_size int32; 5 input ModelInput*; 6 output ModelOutput*;
    17 backend string
ModelInput: 1 name string; 2 data_type DataType; 4 dims int64*; 8 optional bool
ModelOutput: 1 name string; 2 data_type DataType; 3 dims int64*
enum DataType: 0 TYPE_INVALID; 1 TYPE_BOOL; 2 TYPE_UINT8; 3 TYPE_UINT16; 4 TYPE_UINT32; 5 TYPE_UINT64; 6 TYPE_INT8;
    7 TYPE_INT16; 8 TYPE_INT32; 9 TYPE_INT64; 10 TYPE_FP16; 11 TYPE_FP32; 12 TYPE_FP64; 13 TYPE_STRING; 14 TYPE_BF16
InferBatchStatistics: 1 batch_size uint64; 2 compute_input StatisticDuration; 3 compute_infer StatisticDuration;
    4 compute_output StatisticDuration
service GRPCInferenceService: ServerLive ServerLiveRequest ServerLiveResponse;
    ServerReady ServerReadyRequest ServerReadyResponse; ServerMetadata ServerMetadataRequest ServerMetadataResponse;
    ModelReady ModelReadyRequest ModelReadyResponse; ModelMetadata ModelMetadataRequest ModelMetadataResponse;
    ModelConfig ModelConfigRequest ModelConfigResponse; ModelInfer ModelInferRequest ModelInferResponse;
    ModelStreamInfer ModelInferRequest* ModelStreamInferResponse*;
    ModelStatistics ModelStatisticsRequest ModelStatisticsResponse;
    RepositoryIndex RepositoryIndexRequest RepositoryIndexResponse;
    RepositoryModelLoad RepositoryModelLoadRequest RepositoryModelLoadResponse;
    RepositoryModelUnload RepositoryModelUnloadRequest RepositoryModelUnloadResponse
"""


HEALTH_PACKAGE: Final = "grpc.health.v1"
_HEALTH: Final = """
HealthCheckRequest: 1 service string
HealthCheckResponse: 1 status HealthCheckResponse.ServingStatus
enum HealthCheckResponse.ServingStatus: 0 UNKNOWN; 1 SERVING; 2 NOT_SERVING; 3 SERVICE_UNKNOWN
service Health: Check HealthCheckRequest HealthCheckResponse; Watch HealthCheckRequest HealthCheckResponse*
"""

REFLECTION_PACKAGES: Final = ("grpc.reflection.v1", "grpc.reflection.v1alpha")  # identical; clients use either
_REFLECTION: Final = """
ServerReflectionRequest: 1 host string; message_request { 3 file_by_filename string; 4 file_containing_symbol string;
    5 file_containing_extension ExtensionRequest; 6 all_extension_numbers_of_type string; 7 list_services string }
ExtensionRequest: 1 containing_type string; 2 extension_number int32
ServerReflectionResponse: 1 valid_host string; 2 original_request ServerReflectionRequest;
    message_response { 4 file_descriptor_response FileDescriptorResponse;
    5 all_extension_numbers_response ExtensionNumberResponse; 6 list_services_response ListServiceResponse;
    7 error_response ErrorResponse }
FileDescriptorResponse: 1 file_descriptor_proto bytes*
ExtensionNumberResponse: 1 base_type_name string; 2 extension_number int32*
ListServiceResponse: 1 service ServiceResponse*
ServiceResponse: 1 name string
ErrorResponse: 1 error_code int32; 2 error_message string
service ServerReflection: ServerReflectionInfo ServerReflectionRequest* ServerReflectionResponse*
"""


def pool() -> Any:
    """Return the descriptor pool with all messages."""
    with not_forked(), _MAKING:
        return _made()


@functools.cache
def _made() -> Any:
    from google.protobuf import descriptor_pool

    from aioflow.protos.declaring import declare

    made = descriptor_pool.DescriptorPool()
    tables = [("inference", PACKAGE, MESSAGES), ("health", HEALTH_PACKAGE, _HEALTH)]
    tables += [(f"reflection_{package.rpartition('.')[2]}", package, _REFLECTION) for package in REFLECTION_PACKAGES]
    for name, package, table in tables:
        made.AddSerializedFile(declare(f"aioflow/{name}.proto", package, table, ()).SerializeToString())
    return made


@functools.cache
def message(name: str, package: str = PACKAGE) -> Message:
    """Return the class of a message, such as "ModelInferRequest" or "ModelInferRequest.InferInputTensor".

    Raises:
        KeyError: the table of the package does not have the message.
    """
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(pool().FindMessageTypeByName(f"{package}.{name}"))


def parsed(name: str, data: bytes, package: str = PACKAGE) -> Message:
    """Decode `data` as the message `name`. Raise MalformedRequestError if it is not one."""
    from google.protobuf.message import DecodeError

    try:
        return message(name, package).FromString(data)
    except DecodeError as error:
        raise MalformedRequestError(f"the request is no {name}", actual=str(error)) from error
