"""Strings: the public namespace `aioflow.strings`, after `tf.strings` of the TensorFlow 1 API."""

from aioflow.ops.strings import as_string as as_string
from aioflow.ops.strings import string_join as join
from aioflow.ops.strings import string_length as length
from aioflow.ops.strings import string_to_number as to_number
from aioflow.ops.strings import substr as substr

__all__ = ["as_string", "join", "length", "substr", "to_number"]
