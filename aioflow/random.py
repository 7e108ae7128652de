"""Random tensors: the public namespace `aioflow.random`, after `tf.random` of the TensorFlow 1 API."""

from aioflow.loading.later import load_later as _load_later
from aioflow.ops.math.philox import stateless_gamma
from aioflow.ops.math.random import categorical, get_seed, multinomial, set_random_seed, truncated_normal
from aioflow.ops.math.random import random_gamma as gamma
from aioflow.ops.math.random import random_normal as normal
from aioflow.ops.math.random import random_poisson as poisson
from aioflow.ops.math.random import random_shuffle as shuffle
from aioflow.ops.math.random import random_uniform as uniform
from aioflow.ops.math.random import stateless_random_normal as stateless_normal
from aioflow.ops.math.random import stateless_random_uniform as stateless_uniform
from aioflow.ops.math.random import stateless_truncated_normal as stateless_truncated_normal

__all__ = [
    "categorical",
    "gamma",
    "get_seed",
    "multinomial",
    "normal",
    "poisson",
    "set_random_seed",
    "shuffle",
    "stateless_gamma",
    "stateless_normal",
    "stateless_truncated_normal",
    "stateless_uniform",
    "truncated_normal",
    "uniform",
]

_load_later(__name__)
