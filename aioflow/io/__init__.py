"""Graphs, records and other files: the public namespace `aioflow.io`, after `tf.io` of the TensorFlow 1 API."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.loading.later import homes as _homes
from aioflow.loading.later import load_later as _load_later
from aioflow.ops.image.images import decode_bmp as decode_bmp
from aioflow.ops.image.images import decode_gif as decode_gif
from aioflow.ops.image.images import decode_image as decode_image
from aioflow.ops.image.images import decode_jpeg as decode_jpeg
from aioflow.ops.image.images import decode_png as decode_png
from aioflow.ops.image.images import encode_jpeg as encode_jpeg
from aioflow.ops.image.images import encode_png as encode_png
from aioflow.ops.image.images import extract_jpeg_shape as extract_jpeg_shape
from aioflow.ops.image.images import is_jpeg as is_jpeg
from aioflow.ops.io.example_features import FixedLenFeature as FixedLenFeature
from aioflow.ops.io.example_features import FixedLenSequenceFeature as FixedLenSequenceFeature
from aioflow.ops.io.example_features import SparseFeature as SparseFeature
from aioflow.ops.io.example_features import VarLenFeature as VarLenFeature
from aioflow.ops.io.files import matching_files as matching_files
from aioflow.ops.io.files import read_file as read_file
from aioflow.ops.io.files import write_file as write_file
from aioflow.ops.io.parsing import decode_csv as decode_csv
from aioflow.ops.io.parsing import decode_raw as decode_raw
from aioflow.ops.io.parsing import parse_example as parse_example
from aioflow.ops.io.parsing import parse_single_example as parse_single_example
from aioflow.ops.io.parsing import parse_single_sequence_example as parse_single_sequence_example
from aioflow.ops.io.serialization import deserialize_many_sparse as deserialize_many_sparse
from aioflow.ops.io.serialization import parse_tensor as parse_tensor
from aioflow.ops.io.serialization import serialize_many_sparse as serialize_many_sparse
from aioflow.ops.io.serialization import serialize_sparse as serialize_sparse
from aioflow.ops.io.serialization import serialize_tensor as serialize_tensor
from aioflow.ops.queues.queues import PaddingFIFOQueue as PaddingFIFOQueue
from aioflow.ops.queues.queues import PriorityQueue as PriorityQueue
from aioflow.ops.queues.queues import QueueBase as QueueBase
from aioflow.ops.queues.queues import RandomShuffleQueue as RandomShuffleQueue
from aioflow.ops.text.forms import decode_base64 as decode_base64
from aioflow.ops.text.forms import encode_base64 as encode_base64

# ruff: noqa: TC004
if _TYPE_CHECKING:
    from aioflow.formats.tfrecord import TFRecordCompressionType as TFRecordCompressionType
    from aioflow.formats.tfrecord import TFRecordOptions as TFRecordOptions
    from aioflow.formats.tfrecord import TFRecordWriter as TFRecordWriter
    from aioflow.formats.tfrecord import tf_record_iterator as tf_record_iterator
    from aioflow.io import gfile as gfile
    from aioflow.train.graph_io import read_graph as read_graph
    from aioflow.train.graph_io import write_graph as write_graph
    from aioflow.train.input import match_filenames_once as match_filenames_once

__all__ = [
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "PaddingFIFOQueue",
    "PriorityQueue",
    "QueueBase",
    "RandomShuffleQueue",
    "SparseFeature",
    "TFRecordCompressionType",
    "TFRecordOptions",
    "TFRecordWriter",
    "VarLenFeature",
    "decode_base64",
    "decode_bmp",
    "decode_csv",
    "decode_gif",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "decode_raw",
    "deserialize_many_sparse",
    "encode_base64",
    "encode_jpeg",
    "encode_png",
    "extract_jpeg_shape",
    "is_jpeg",
    "match_filenames_once",
    "matching_files",
    "parse_example",
    "parse_single_example",
    "parse_single_sequence_example",
    "parse_tensor",
    "read_file",
    "read_graph",
    "serialize_many_sparse",
    "serialize_sparse",
    "serialize_tensor",
    "tf_record_iterator",
    "write_file",
    "write_graph",
]

_load_later(
    __name__,
    {"gfile": "aioflow.io.gfile"}
    | _homes(
        {
            "aioflow.formats.tfrecord": "TFRecordCompressionType TFRecordOptions TFRecordWriter tf_record_iterator",
            "aioflow.train.graph_io": "read_graph write_graph",
            "aioflow.train.input": "match_filenames_once",
        }
    ),
)
