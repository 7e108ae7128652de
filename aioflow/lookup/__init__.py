"""`aioflow.lookup`: tables of values by key, under TensorFlow 1's names."""

from aioflow.loading.later import load_later as _load_later
from aioflow.lookup import experimental as experimental
from aioflow.ops.lookup.initializers import KeyValueTensorInitializer as KeyValueTensorInitializer
from aioflow.ops.lookup.initializers import TextFileIndex as TextFileIndex
from aioflow.ops.lookup.initializers import TextFileInitializer as TextFileInitializer
from aioflow.ops.lookup.tables import StaticHashTable as StaticHashTable
from aioflow.ops.lookup.tables import StaticVocabularyTable as StaticVocabularyTable

__all__ = [
    "KeyValueTensorInitializer",
    "StaticHashTable",
    "StaticVocabularyTable",
    "TextFileIndex",
    "TextFileInitializer",
]

_load_later(__name__)
