"""Input pipelines: asynchronous datasets, and iterators over them. The names are TensorFlow 1's `tf.data`."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.data import experimental as experimental
from aioflow.loading.later import homes as _homes
from aioflow.loading.later import load_later as _load_later

# ruff: noqa: TC004
if _TYPE_CHECKING:
    from aioflow.data.dataset import AUTOTUNE as AUTOTUNE
    from aioflow.data.dataset import Dataset as Dataset
    from aioflow.data.dataset import Options as Options
    from aioflow.data.files import FixedLengthRecordDataset as FixedLengthRecordDataset
    from aioflow.data.files import TextLineDataset as TextLineDataset
    from aioflow.data.files import TFRecordDataset as TFRecordDataset
    from aioflow.data.iteration import DatasetIterator as DatasetIterator
    from aioflow.data.iterator import Iterator as Iterator
    from aioflow.data.iterator import get_output_classes as get_output_classes
    from aioflow.data.iterator import get_output_shapes as get_output_shapes
    from aioflow.data.iterator import get_output_types as get_output_types
    from aioflow.data.iterator import make_initializable_iterator as make_initializable_iterator
    from aioflow.data.iterator import make_one_shot_iterator as make_one_shot_iterator

__all__ = [
    "AUTOTUNE",
    "Dataset",
    "DatasetIterator",
    "FixedLengthRecordDataset",
    "Iterator",
    "Options",
    "TFRecordDataset",
    "TextLineDataset",
    "get_output_classes",
    "get_output_shapes",
    "get_output_types",
    "make_initializable_iterator",
    "make_one_shot_iterator",
]

_load_later(
    __name__,
    _homes(
        {
            "aioflow.data.dataset": "AUTOTUNE Dataset Options",
            "aioflow.data.files": "FixedLengthRecordDataset TFRecordDataset TextLineDataset",
            "aioflow.data.iteration": "DatasetIterator",
            "aioflow.data.iterator": (
                "Iterator get_output_classes get_output_shapes get_output_types make_initializable_iterator "
                "make_one_shot_iterator"
            ),
        }
    ),
)
