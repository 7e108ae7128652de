"""`aioflow.math`: elementwise, reduction and segment functions, under TensorFlow 1's names."""

from aioflow.loading.later import load_later as _load_later
from aioflow.ops.array.order import invert_permutation as invert_permutation
from aioflow.ops.control.assertions import is_non_decreasing as is_non_decreasing
from aioflow.ops.control.assertions import is_strictly_increasing as is_strictly_increasing
from aioflow.ops.math.arithmetic import add as add
from aioflow.ops.math.arithmetic import atan2 as atan2
from aioflow.ops.math.arithmetic import maximum as maximum
from aioflow.ops.math.arithmetic import minimum as minimum
from aioflow.ops.math.arithmetic import multiply as multiply
from aioflow.ops.math.arithmetic import multiply_no_nan as multiply_no_nan
from aioflow.ops.math.arithmetic import nextafter as nextafter
from aioflow.ops.math.arithmetic import polyval as polyval
from aioflow.ops.math.arithmetic import pow as pow
from aioflow.ops.math.arithmetic import squared_difference as squared_difference
from aioflow.ops.math.arithmetic import subtract as subtract
from aioflow.ops.math.arithmetic import xdivy as xdivy
from aioflow.ops.math.arithmetic import xlog1py as xlog1py
from aioflow.ops.math.arithmetic import xlogy as xlogy
from aioflow.ops.math.comparison import equal as equal
from aioflow.ops.math.comparison import greater as greater
from aioflow.ops.math.comparison import greater_equal as greater_equal
from aioflow.ops.math.comparison import is_finite as is_finite
from aioflow.ops.math.comparison import is_inf as is_inf
from aioflow.ops.math.comparison import is_nan as is_nan
from aioflow.ops.math.comparison import less as less
from aioflow.ops.math.comparison import less_equal as less_equal
from aioflow.ops.math.comparison import logical_and as logical_and
from aioflow.ops.math.comparison import logical_not as logical_not
from aioflow.ops.math.comparison import logical_or as logical_or
from aioflow.ops.math.comparison import logical_xor as logical_xor
from aioflow.ops.math.comparison import not_equal as not_equal
from aioflow.ops.math.complex import abs as abs
from aioflow.ops.math.complex import angle as angle
from aioflow.ops.math.complex import conj as conj
from aioflow.ops.math.complex import imag as imag
from aioflow.ops.math.complex import real as real
from aioflow.ops.math.division import div_no_nan as _div_no_nan
from aioflow.ops.math.division import divide as divide
from aioflow.ops.math.division import floordiv as floordiv
from aioflow.ops.math.division import floormod as floormod
from aioflow.ops.math.division import mod as mod
from aioflow.ops.math.division import reciprocal_no_nan as reciprocal_no_nan
from aioflow.ops.math.division import truediv as truediv
from aioflow.ops.math.reduction import count_nonzero as count_nonzero
from aioflow.ops.math.reduction import cumprod as cumprod
from aioflow.ops.math.reduction import cumsum as cumsum
from aioflow.ops.math.reduction import reduce_all as reduce_all
from aioflow.ops.math.reduction import reduce_any as reduce_any
from aioflow.ops.math.reduction import reduce_euclidean_norm as reduce_euclidean_norm
from aioflow.ops.math.reduction import reduce_logsumexp as reduce_logsumexp
from aioflow.ops.math.reduction import reduce_max as reduce_max
from aioflow.ops.math.reduction import reduce_mean as reduce_mean
from aioflow.ops.math.reduction import reduce_min as reduce_min
from aioflow.ops.math.reduction import reduce_prod as reduce_prod
from aioflow.ops.math.reduction import reduce_std as reduce_std
from aioflow.ops.math.reduction import reduce_sum as reduce_sum
from aioflow.ops.math.reduction import reduce_variance as reduce_variance
from aioflow.ops.math.segment import segment_max as segment_max
from aioflow.ops.math.segment import segment_mean as segment_mean
from aioflow.ops.math.segment import segment_min as segment_min
from aioflow.ops.math.segment import segment_prod as segment_prod
from aioflow.ops.math.segment import segment_sum as segment_sum
from aioflow.ops.math.segment import unsorted_segment_max as unsorted_segment_max
from aioflow.ops.math.segment import unsorted_segment_mean as unsorted_segment_mean
from aioflow.ops.math.segment import unsorted_segment_min as unsorted_segment_min
from aioflow.ops.math.segment import unsorted_segment_prod as unsorted_segment_prod
from aioflow.ops.math.segment import unsorted_segment_sqrt_n as unsorted_segment_sqrt_n
from aioflow.ops.math.segment import unsorted_segment_sum as unsorted_segment_sum
from aioflow.ops.math.sorting import argmax as argmax
from aioflow.ops.math.sorting import argmin as argmin
from aioflow.ops.math.sorting import bincount as bincount
from aioflow.ops.math.sorting import confusion_matrix as confusion_matrix
from aioflow.ops.math.sorting import in_top_k as in_top_k
from aioflow.ops.math.sorting import top_k as top_k
from aioflow.ops.math.special import betainc as betainc
from aioflow.ops.math.special import digamma as digamma
from aioflow.ops.math.special import erf as erf
from aioflow.ops.math.special import erfc as erfc
from aioflow.ops.math.special import erfcinv as erfcinv
from aioflow.ops.math.special import erfinv as erfinv
from aioflow.ops.math.special import igamma as igamma
from aioflow.ops.math.special import igammac as igammac
from aioflow.ops.math.special import lbeta as lbeta
from aioflow.ops.math.special import lgamma as lgamma
from aioflow.ops.math.special import ndtri as ndtri
from aioflow.ops.math.special import polygamma as polygamma
from aioflow.ops.math.special import zeta as zeta
from aioflow.ops.math.sums import accumulate_n as accumulate_n
from aioflow.ops.math.sums import add_n as add_n
from aioflow.ops.math.sums import scalar_mul as scalar_mul
from aioflow.ops.math.unary import acos as acos
from aioflow.ops.math.unary import acosh as acosh
from aioflow.ops.math.unary import asin as asin
from aioflow.ops.math.unary import asinh as asinh
from aioflow.ops.math.unary import atan as atan
from aioflow.ops.math.unary import atanh as atanh
from aioflow.ops.math.unary import ceil as ceil
from aioflow.ops.math.unary import cos as cos
from aioflow.ops.math.unary import cosh as cosh
from aioflow.ops.math.unary import exp as exp
from aioflow.ops.math.unary import expm1 as expm1
from aioflow.ops.math.unary import floor as floor
from aioflow.ops.math.unary import log as log
from aioflow.ops.math.unary import log1p as log1p
from aioflow.ops.math.unary import log_sigmoid as log_sigmoid
from aioflow.ops.math.unary import negative as negative
from aioflow.ops.math.unary import reciprocal as reciprocal
from aioflow.ops.math.unary import rint as rint
from aioflow.ops.math.unary import round as round
from aioflow.ops.math.unary import rsqrt as rsqrt
from aioflow.ops.math.unary import sigmoid as sigmoid
from aioflow.ops.math.unary import sign as sign
from aioflow.ops.math.unary import sin as sin
from aioflow.ops.math.unary import sinh as sinh
from aioflow.ops.math.unary import sqrt as sqrt
from aioflow.ops.math.unary import square as square
from aioflow.ops.math.unary import tan as tan
from aioflow.ops.math.unary import tanh as tanh
from aioflow.ops.nn.activations import log_softmax as log_softmax
from aioflow.ops.nn.activations import softmax as softmax
from aioflow.ops.nn.activations import softplus as softplus
from aioflow.ops.nn.activations import softsign as softsign
from aioflow.ops.nn.layers import zero_fraction as zero_fraction
from aioflow.ops.nn.normalization import l2_normalize as l2_normalize

divide_no_nan = _div_no_nan  # TensorFlow's name in this namespace

__all__ = [
    "abs",
    "accumulate_n",
    "acos",
    "acosh",
    "add",
    "add_n",
    "angle",
    "argmax",
    "argmin",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "betainc",
    "bincount",
    "ceil",
    "confusion_matrix",
    "conj",
    "cos",
    "cosh",
    "count_nonzero",
    "cumprod",
    "cumsum",
    "digamma",
    "divide",
    "divide_no_nan",
    "equal",
    "erf",
    "erfc",
    "erfcinv",
    "erfinv",
    "exp",
    "expm1",
    "floor",
    "floordiv",
    "floormod",
    "greater",
    "greater_equal",
    "igamma",
    "igammac",
    "imag",
    "in_top_k",
    "invert_permutation",
    "is_finite",
    "is_inf",
    "is_nan",
    "is_non_decreasing",
    "is_strictly_increasing",
    "l2_normalize",
    "lbeta",
    "less",
    "less_equal",
    "lgamma",
    "log",
    "log1p",
    "log_sigmoid",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "multiply_no_nan",
    "ndtri",
    "negative",
    "nextafter",
    "not_equal",
    "polygamma",
    "polyval",
    "pow",
    "real",
    "reciprocal",
    "reciprocal_no_nan",
    "reduce_all",
    "reduce_any",
    "reduce_euclidean_norm",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_std",
    "reduce_sum",
    "reduce_variance",
    "rint",
    "round",
    "rsqrt",
    "scalar_mul",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "softmax",
    "softplus",
    "softsign",
    "sqrt",
    "square",
    "squared_difference",
    "subtract",
    "tan",
    "tanh",
    "top_k",
    "truediv",
    "unsorted_segment_max",
    "unsorted_segment_mean",
    "unsorted_segment_min",
    "unsorted_segment_prod",
    "unsorted_segment_sqrt_n",
    "unsorted_segment_sum",
    "xdivy",
    "xlog1py",
    "xlogy",
    "zero_fraction",
    "zeta",
]

_load_later(__name__)
