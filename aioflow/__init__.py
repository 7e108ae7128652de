"""aioflow: an asyncio-native dataflow engine. Build a graph, then `await session.run()`.

The names here, and in the namespaces `aioflow.nn`, `aioflow.train`, …, are the public surface; `__all__` has them all,
and tests/test_public_names.py holds it to that. What is in other modules may change from one version to the next.
"""

from types import ModuleType as _ModuleType

from aioflow.preload import run_preload_hooks as _run_preload_hooks

_run_preload_hooks()

# ruff: noqa: E402, F401, F403, I001
# NumPy may be imported only after the hooks. The `__all__` of each family is its public surface.

# The engine: graphs, sessions, differentiation.
from aioflow.autodiff import *
from aioflow.dtypes import *
from aioflow.errors import OpError as OpError
from aioflow.config import RunOptions as RunOptions
from aioflow.config import SessionConfig as SessionConfig
from aioflow.config import TraceLevel as TraceLevel
from aioflow.graph.default_graph import get_default_graph as get_default_graph
from aioflow.graph.default_graph import reset_default_graph as reset_default_graph
from aioflow.graph.device_spec import DeviceSpec as DeviceSpec
from aioflow.graph.graph import Graph as Graph
from aioflow.graph.graph import GraphKeys as GraphKeys
from aioflow.graph.graph import Operation as Operation
from aioflow.graph.graph import Tensor as Tensor
from aioflow.graph.graphdef import GraphDef as GraphDef
from aioflow.graph.graphdef import NodeDef as NodeDef
from aioflow.graph.indexed_slices import IndexedSlices as IndexedSlices
from aioflow.graph.shapes import Dimension as Dimension
from aioflow.graph.shapes import TensorShape as TensorShape
from aioflow.runtime.device_list import DeviceAttributes as DeviceAttributes
from aioflow.runtime.device_list import list_devices as list_devices
from aioflow.runtime.stats import RunMetadata as RunMetadata
from aioflow.session import Session as Session
from aioflow.graph.default_session import current_session as _current_session
from aioflow.ops.apply import constant as constant
from aioflow.ops.apply import convert_to_tensor as convert_to_tensor
from aioflow.ops.apply import register_tensor_conversion_function as register_tensor_conversion_function
from aioflow.missing_names import answer_for as _answer_for
from aioflow.ops.core import tuple_ as _tuple
from aioflow.ops.transfer import compressed as compressed
from aioflow.ops.indexed import convert_to_tensor_or_indexed_slices as convert_to_tensor_or_indexed_slices

# The op families.
from aioflow.ops.core import *
from aioflow.ops.importer import *
from aioflow.ops.array_shape import *
from aioflow.ops.array_make import *
from aioflow.ops.array import *
from aioflow.ops.array_index import *
from aioflow.ops.array_select import *
from aioflow.ops.array_slice import *
from aioflow.ops.array_pad import *
from aioflow.ops.array_order import *
from aioflow.ops.array_diag import *
from aioflow.ops.broadcasting import *
from aioflow.ops.math import *
from aioflow.ops.division import *
from aioflow.ops.math_sums import *
from aioflow.ops.math_unary import *
from aioflow.ops.math_complex import *
from aioflow.ops.math_special import *
from aioflow.ops.comparison import *
from aioflow.ops.numerics import *
from aioflow.ops.scoping import *
from aioflow.ops.state import *
from aioflow.ops.variable_replicas import *
from aioflow.ops.variables import *
from aioflow.ops.variable_collections import *
from aioflow.ops.initializers import *
from aioflow.ops.variable_scope import *
from aioflow.ops.clip import *
from aioflow.ops.reduction import *
from aioflow.ops.matrix import *
from aioflow.ops.tensordot import *
from aioflow.ops.linalg_ops import *
from aioflow.ops.linalg_norm import *
from aioflow.ops.segment import *
from aioflow.ops.sorting import *
from aioflow.ops.random import *
from aioflow.ops.queues import *
from aioflow.ops.accumulators import *
from aioflow.ops.barrier import *
from aioflow.ops.staging import *
from aioflow.ops.critical_section import *
from aioflow.ops.io_files import *
from aioflow.ops.readers import *
from aioflow.ops.strings import *
from aioflow.ops.tensor_list import *
from aioflow.ops.control_flow_ops import *
from aioflow.ops.control_flow import *
from aioflow.ops.tensor_array import *
from aioflow.ops.functional import *
from aioflow.ops.py_func import *
from aioflow.ops.function import *
from aioflow.ops.functional_ops import *
from aioflow.ops.sparse_tensor import *
from aioflow.ops.sparse import *
from aioflow.ops.sparse_dense import *
from aioflow.ops.sparse_math import *
from aioflow.ops.serialization import *
from aioflow.ops.string_forms import *
from aioflow.ops.example_features import *
from aioflow.ops.parsing import *

# What is imported for what it registers: kernels, ops without a builder at this level, operators of tensors.
from aioflow.kernels import core as _core_kernels
from aioflow.kernels import array_shape as _array_shape_kernels
from aioflow.kernels import array_make as _array_make_kernels
from aioflow.kernels import array as _array_kernels
from aioflow.kernels import array_index as _array_index_kernels
from aioflow.kernels import array_slice as _array_slice_kernels
from aioflow.kernels import array_pad as _array_pad_kernels
from aioflow.kernels import array_order as _array_order_kernels
from aioflow.kernels import array_diag as _array_diag_kernels
from aioflow.ops import bitwise as _bitwise_ops
from aioflow.ops import operators as _operators
from aioflow.kernels import elementwise as _elementwise_kernels
from aioflow.kernels import elementwise_checks as _elementwise_checks
from aioflow.kernels import elementwise_integer as _elementwise_integer
from aioflow.kernels import elementwise_special as _elementwise_special
from aioflow.kernels import state as _state_kernels
from aioflow.ops import io as _io_ops
from aioflow.kernels import io as _io_kernels
from aioflow.ops import training as _training_ops
from aioflow.kernels import training as _training_kernels
from aioflow.kernels import reduction as _reduction_kernels
from aioflow.kernels import matrix as _matrix_kernels
from aioflow.kernels import linalg as _linalg_kernels
from aioflow.kernels import segment as _segment_kernels
from aioflow.kernels import sorting as _sorting_kernels
from aioflow.ops import queue_ops as _queue_ops
from aioflow.kernels import queues as _queue_kernels
from aioflow.kernels import accumulators as _accumulator_kernels
from aioflow.kernels import barrier as _barrier_kernels
from aioflow.kernels import staging as _staging_kernels
from aioflow.kernels import mutex as _mutex_kernels
from aioflow.ops import stack_ops as _stack_ops
from aioflow.kernels import stack as _stack_kernels
from aioflow.kernels import io_files as _file_kernels
from aioflow.kernels import readers as _reader_kernels
from aioflow.kernels import strings as _string_kernels
from aioflow.kernels import parsing as _parsing_kernels
from aioflow.kernels import control_flow as _control_flow_kernels
from aioflow.kernels import tensor_list as _tensor_list_kernels
from aioflow.kernels import tensor_array as _tensor_array_kernels
from aioflow.kernels import py_func as _py_func_kernels
from aioflow.kernels import sparse as _sparse_kernels
from aioflow.kernels import sparse_math as _sparse_math_kernels
from aioflow.kernels import serialization as _serialization_kernels
from aioflow.kernels import string_forms as _string_form_kernels
from aioflow.ops import image as _image_ops
from aioflow.kernels import image as _image_kernels
from aioflow.kernels import image_files as _image_file_kernels
from aioflow.kernels import async_source as _async_source_kernels
from aioflow.autodiff import symbolic as _symbolic_gradient
from aioflow.ops import partial_run as _partial_run_ops
from aioflow.ops import fused as _fused_ops
from aioflow.kernels import partial_run as _partial_run_kernels
from aioflow.kernels import transfer as _transfer_kernels

# The namespaces.
from aioflow import bitwise as bitwise
from aioflow import dtypes as dtypes
from aioflow import errors as errors
from aioflow import extend as extend
from aioflow import image as image
from aioflow import initializers as initializers
from aioflow import io as io
from aioflow import linalg as linalg
from aioflow import losses as losses
from aioflow import math as math
from aioflow import nn as nn
from aioflow import random as random
from aioflow import raw_ops as raw_ops
from aioflow import sparse as sparse
from aioflow import strings as strings
from aioflow import train as train
from aioflow import typing as typing
from aioflow import web as web

get_default_session = _current_session
tuple = _tuple  # TensorFlow's name; from here on the builtin is not to be had in this module

__version__ = "0.1.0"

_NAMESPACES = (
    "bitwise",
    "dtypes",
    "errors",
    "extend",
    "image",
    "initializers",
    "io",
    "linalg",
    "losses",
    "math",
    "nn",
    "random",
    "raw_ops",
    "sparse",
    "strings",
    "train",
    "typing",
    "web",
)

_answer_for(__name__, _NAMESPACES)

__all__ = sorted(
    name
    for name, value in vars().items()
    if not name.startswith("_") and (name in _NAMESPACES or not isinstance(value, _ModuleType))
)
