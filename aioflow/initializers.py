"""The public namespace `aioflow.initializers`, after `tf.initializers` of the TensorFlow 1 API."""

from aioflow.loading.later import load_later as _load_later
from aioflow.ops.lookup.initializers import tables_initializer as tables_initializer
from aioflow.ops.variables.collections import global_variables_initializer as global_variables
from aioflow.ops.variables.collections import local_variables_initializer as local_variables
from aioflow.ops.variables.collections import variables_initializer as variables
from aioflow.ops.variables.initializers import constant_initializer as constant
from aioflow.ops.variables.initializers import glorot_normal_initializer as glorot_normal
from aioflow.ops.variables.initializers import glorot_uniform_initializer as glorot_uniform
from aioflow.ops.variables.initializers import he_normal, he_uniform, lecun_normal, lecun_uniform
from aioflow.ops.variables.initializers import identity_initializer as identity
from aioflow.ops.variables.initializers import ones_initializer as ones
from aioflow.ops.variables.initializers import orthogonal_initializer as orthogonal
from aioflow.ops.variables.initializers import random_normal_initializer as random_normal
from aioflow.ops.variables.initializers import random_uniform_initializer as random_uniform
from aioflow.ops.variables.initializers import truncated_normal_initializer as truncated_normal
from aioflow.ops.variables.initializers import uniform_unit_scaling_initializer as uniform_unit_scaling
from aioflow.ops.variables.initializers import variance_scaling_initializer as variance_scaling
from aioflow.ops.variables.initializers import zeros_initializer as zeros

__all__ = [
    "constant",
    "global_variables",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "identity",
    "lecun_normal",
    "lecun_uniform",
    "local_variables",
    "ones",
    "orthogonal",
    "random_normal",
    "random_uniform",
    "tables_initializer",
    "truncated_normal",
    "uniform_unit_scaling",
    "variables",
    "variance_scaling",
    "zeros",
]

_load_later(__name__)
