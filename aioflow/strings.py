"""Strings: the public namespace `aioflow.strings`, after `tf.strings` of the TensorFlow 1 API."""

from aioflow.loading.later import load_later as _load_later
from aioflow.ops.text.forms import reduce_join as reduce_join
from aioflow.ops.text.forms import regex_full_match as regex_full_match
from aioflow.ops.text.forms import regex_replace as regex_replace
from aioflow.ops.text.forms import string_lower as lower
from aioflow.ops.text.forms import string_split_v2 as split
from aioflow.ops.text.forms import string_strip as strip
from aioflow.ops.text.forms import string_to_hash_bucket as to_hash_bucket
from aioflow.ops.text.forms import string_to_hash_bucket_fast as to_hash_bucket_fast
from aioflow.ops.text.forms import string_to_hash_bucket_strong as to_hash_bucket_strong
from aioflow.ops.text.forms import string_upper as upper
from aioflow.ops.text.strings import as_string as as_string
from aioflow.ops.text.strings import string_join as join
from aioflow.ops.text.strings import string_length as length
from aioflow.ops.text.strings import string_to_number as to_number
from aioflow.ops.text.strings import substr as substr

__all__ = [
    "as_string",
    "join",
    "length",
    "lower",
    "reduce_join",
    "regex_full_match",
    "regex_replace",
    "split",
    "strip",
    "substr",
    "to_hash_bucket",
    "to_hash_bucket_fast",
    "to_hash_bucket_strong",
    "to_number",
    "upper",
]

_load_later(__name__)
