"""`aioflow.debugging`: checks of values, shapes and dtypes, under TensorFlow 1's names."""

from aioflow.loading.later import load_later as _load_later
from aioflow.ops.control.assertions import assert_equal as assert_equal
from aioflow.ops.control.assertions import assert_greater as assert_greater
from aioflow.ops.control.assertions import assert_greater_equal as assert_greater_equal
from aioflow.ops.control.assertions import assert_integer as assert_integer
from aioflow.ops.control.assertions import assert_less as assert_less
from aioflow.ops.control.assertions import assert_less_equal as assert_less_equal
from aioflow.ops.control.assertions import assert_near as assert_near
from aioflow.ops.control.assertions import assert_negative as assert_negative
from aioflow.ops.control.assertions import assert_non_negative as assert_non_negative
from aioflow.ops.control.assertions import assert_non_positive as assert_non_positive
from aioflow.ops.control.assertions import assert_none_equal as assert_none_equal
from aioflow.ops.control.assertions import assert_positive as assert_positive
from aioflow.ops.control.assertions import assert_proper_iterable as assert_proper_iterable
from aioflow.ops.control.assertions import assert_rank as assert_rank
from aioflow.ops.control.assertions import assert_rank_at_least as assert_rank_at_least
from aioflow.ops.control.assertions import assert_rank_in as assert_rank_in
from aioflow.ops.control.assertions import assert_same_float_dtype as assert_same_float_dtype
from aioflow.ops.control.assertions import assert_scalar as assert_scalar
from aioflow.ops.control.assertions import assert_shapes as assert_shapes
from aioflow.ops.control.assertions import assert_type as assert_type
from aioflow.ops.control.assertions import is_non_decreasing as is_non_decreasing
from aioflow.ops.control.assertions import is_numeric_tensor as is_numeric_tensor
from aioflow.ops.control.assertions import is_strictly_increasing as is_strictly_increasing
from aioflow.ops.control.primitives import Assert as Assert
from aioflow.ops.math.comparison import check_numerics as check_numerics
from aioflow.ops.math.comparison import is_finite as is_finite
from aioflow.ops.math.comparison import is_inf as is_inf
from aioflow.ops.math.comparison import is_nan as is_nan
from aioflow.ops.math.comparison import verify_tensor_all_finite as assert_all_finite

__all__ = [
    "Assert",
    "assert_all_finite",
    "assert_equal",
    "assert_greater",
    "assert_greater_equal",
    "assert_integer",
    "assert_less",
    "assert_less_equal",
    "assert_near",
    "assert_negative",
    "assert_non_negative",
    "assert_non_positive",
    "assert_none_equal",
    "assert_positive",
    "assert_proper_iterable",
    "assert_rank",
    "assert_rank_at_least",
    "assert_rank_in",
    "assert_same_float_dtype",
    "assert_scalar",
    "assert_shapes",
    "assert_type",
    "check_numerics",
    "is_finite",
    "is_inf",
    "is_nan",
    "is_non_decreasing",
    "is_numeric_tensor",
    "is_strictly_increasing",
]

_load_later(__name__)
