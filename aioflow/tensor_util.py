"""`aioflow.tensor_util`: static values, under the names of TensorFlow 1's module `python.framework.tensor_util`."""

from aioflow.loading.later import load_later as _load_later
from aioflow.ops.control.assertions import get_static_value as constant_value
from aioflow.ops.static import constant_value_as_shape as constant_value_as_shape
from aioflow.ops.static import is_tensor as is_tensor

__all__ = [
    "constant_value",
    "constant_value_as_shape",
    "is_tensor",
]

_load_later(__name__)
