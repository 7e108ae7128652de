"""Graphs, records and other files: the public namespace `aioflow.io`, after `tf.io` of the TensorFlow 1 API."""

from aioflow.kernels.tfrecord import TFRecordCompressionType as TFRecordCompressionType
from aioflow.kernels.tfrecord import TFRecordOptions as TFRecordOptions
from aioflow.kernels.tfrecord import TFRecordWriter as TFRecordWriter
from aioflow.kernels.tfrecord import tf_record_iterator as tf_record_iterator
from aioflow.ops.io_files import matching_files as matching_files
from aioflow.ops.io_files import read_file as read_file
from aioflow.ops.io_files import write_file as write_file
from aioflow.ops.parsing import FixedLenFeature as FixedLenFeature
from aioflow.ops.parsing import FixedLenSequenceFeature as FixedLenSequenceFeature
from aioflow.ops.parsing import decode_csv as decode_csv
from aioflow.ops.parsing import decode_raw as decode_raw
from aioflow.ops.parsing import parse_example as parse_example
from aioflow.ops.parsing import parse_single_example as parse_single_example
from aioflow.train.graph_io import read_graph as read_graph
from aioflow.train.graph_io import write_graph as write_graph

__all__ = [
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "TFRecordCompressionType",
    "TFRecordOptions",
    "TFRecordWriter",
    "decode_csv",
    "decode_raw",
    "matching_files",
    "parse_example",
    "parse_single_example",
    "read_file",
    "read_graph",
    "tf_record_iterator",
    "write_file",
    "write_graph",
]
