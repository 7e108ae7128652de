"""`aioflow.bitwise`: bitwise functions of integers, under TensorFlow 1's names."""

from aioflow.loading.later import load_later as _load_later
from aioflow.ops.math.bitwise import bitwise_and as bitwise_and
from aioflow.ops.math.bitwise import bitwise_or as bitwise_or
from aioflow.ops.math.bitwise import bitwise_xor as bitwise_xor
from aioflow.ops.math.bitwise import invert as invert
from aioflow.ops.math.bitwise import left_shift as left_shift
from aioflow.ops.math.bitwise import right_shift as right_shift

__all__ = [
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "invert",
    "left_shift",
    "right_shift",
]

_load_later(__name__)
