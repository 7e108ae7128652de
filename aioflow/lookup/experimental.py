"""`aioflow.lookup.experimental`: tables that steps can change, under TensorFlow's names."""

from aioflow.ops.lookup.mutable import DenseHashTable as DenseHashTable
from aioflow.ops.lookup.mutable import MutableHashTable as MutableHashTable
