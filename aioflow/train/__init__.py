"""Training: optimizers, learning rates, moving averages, the global step. The names are TensorFlow 1's `tf.train`."""

from aioflow.train.adagrad import AdadeltaOptimizer as AdadeltaOptimizer
from aioflow.train.adagrad import AdagradOptimizer as AdagradOptimizer
from aioflow.train.adagrad import ProximalAdagradOptimizer as ProximalAdagradOptimizer
from aioflow.train.adam import AdamOptimizer as AdamOptimizer
from aioflow.train.decay import cosine_decay as cosine_decay
from aioflow.train.decay import cosine_decay_restarts as cosine_decay_restarts
from aioflow.train.decay import exponential_decay as exponential_decay
from aioflow.train.decay import inverse_time_decay as inverse_time_decay
from aioflow.train.decay import linear_cosine_decay as linear_cosine_decay
from aioflow.train.decay import natural_exp_decay as natural_exp_decay
from aioflow.train.decay import noisy_linear_cosine_decay as noisy_linear_cosine_decay
from aioflow.train.decay import piecewise_constant as piecewise_constant
from aioflow.train.decay import piecewise_constant_decay as piecewise_constant_decay
from aioflow.train.decay import polynomial_decay as polynomial_decay
from aioflow.train.ftrl import FtrlOptimizer as FtrlOptimizer
from aioflow.train.global_step import assert_global_step as assert_global_step
from aioflow.train.global_step import create_global_step as create_global_step
from aioflow.train.global_step import get_global_step as get_global_step
from aioflow.train.global_step import get_or_create_global_step as get_or_create_global_step
from aioflow.train.global_step import global_step as global_step
from aioflow.train.gradient_descent import GradientDescentOptimizer as GradientDescentOptimizer
from aioflow.train.gradient_descent import ProximalGradientDescentOptimizer as ProximalGradientDescentOptimizer
from aioflow.train.momentum import MomentumOptimizer as MomentumOptimizer
from aioflow.train.moving_averages import ExponentialMovingAverage as ExponentialMovingAverage
from aioflow.train.optimizer import Optimizer as Optimizer
from aioflow.train.rmsprop import RMSPropOptimizer as RMSPropOptimizer
