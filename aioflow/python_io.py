"""`aioflow.python_io`: files of records, under the names of TensorFlow 1's older module."""

from aioflow.formats.tfrecord import TFRecordCompressionType as TFRecordCompressionType
from aioflow.formats.tfrecord import TFRecordOptions as TFRecordOptions
from aioflow.formats.tfrecord import TFRecordWriter as TFRecordWriter
from aioflow.formats.tfrecord import tf_record_iterator as tf_record_iterator
from aioflow.loading.later import load_later as _load_later

__all__ = [
    "TFRecordCompressionType",
    "TFRecordOptions",
    "TFRecordWriter",
    "tf_record_iterator",
]

_load_later(__name__)
