"""Messages of the event files that TensorBoard reads: summaries, graphs, and measurements of traced steps."""

from __future__ import annotations

from typing import Final

MESSAGES: Final = """
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
