"""aioflow: an asyncio-native dataflow engine. Build a graph, then `await session.run()`."""

from aioflow.preload import run_preload_hooks

run_preload_hooks()

# ruff: noqa: E402, F403  # NumPy may be imported only after the hooks; each module's __all__ is its public surface
from aioflow import errors as errors
from aioflow.graph.dtypes import as_dtype as as_dtype
from aioflow.graph.dtypes import bfloat16 as bfloat16
from aioflow.graph.dtypes import complex64 as complex64
from aioflow.graph.dtypes import complex128 as complex128
from aioflow.graph.dtypes import float16 as float16
from aioflow.graph.dtypes import float32 as float32
from aioflow.graph.dtypes import float64 as float64
from aioflow.graph.dtypes import int8 as int8
from aioflow.graph.dtypes import int16 as int16
from aioflow.graph.dtypes import int32 as int32
from aioflow.graph.dtypes import int64 as int64
from aioflow.graph.dtypes import resource as resource
from aioflow.graph.dtypes import string as string
from aioflow.graph.dtypes import uint8 as uint8
from aioflow.graph.dtypes import uint16 as uint16
from aioflow.graph.dtypes import uint32 as uint32
from aioflow.graph.dtypes import uint64 as uint64
from aioflow.graph.dtypes import DType as DType
from aioflow.graph.dtypes import bool_ as bool
from aioflow.graph.dtypes import float16 as half
from aioflow.graph.dtypes import float64 as double
from aioflow.graph.default_graph import get_default_graph as get_default_graph
from aioflow.graph.default_graph import reset_default_graph as reset_default_graph
from aioflow.graph.graph import Graph as Graph
from aioflow.graph.graph import GraphKeys as GraphKeys
from aioflow.graph.graph import Operation as Operation
from aioflow.graph.graphdef import GraphDef as GraphDef
from aioflow.graph.graphdef import NodeDef as NodeDef
from aioflow.graph.graph import Tensor as Tensor
from aioflow.graph.indexed_slices import IndexedSlices as IndexedSlices
from aioflow.graph.shapes import Dimension as Dimension
from aioflow.graph.shapes import TensorShape as TensorShape
from aioflow.config import RunOptions as RunOptions
from aioflow.config import SessionConfig as SessionConfig
from aioflow.config import TraceLevel as TraceLevel
from aioflow.runtime.stats import RunMetadata as RunMetadata
from aioflow.session import Session as Session
from aioflow.ops.apply import *
from aioflow.ops.core import *
from aioflow.ops.importer import *
from aioflow.kernels import core as _core_kernels
from aioflow.ops.array_shape import *
from aioflow.ops.array_make import *
from aioflow.ops.array import *
from aioflow.ops.array_index import *
from aioflow.ops.array_select import *
from aioflow.ops.array_slice import *
from aioflow.ops.array_pad import *
from aioflow.ops.array_order import *
from aioflow.ops.array_diag import *
from aioflow.kernels import array_shape as _array_shape_kernels
from aioflow.kernels import array_make as _array_make_kernels
from aioflow.kernels import array as _array_kernels
from aioflow.kernels import array_index as _array_index_kernels
from aioflow.kernels import array_slice as _array_slice_kernels
from aioflow.kernels import array_pad as _array_pad_kernels
from aioflow.kernels import array_order as _array_order_kernels
from aioflow.kernels import array_diag as _array_diag_kernels
from aioflow.ops.broadcasting import *
from aioflow.ops.math import *
from aioflow.ops.division import *
from aioflow.ops.math_sums import *
from aioflow.ops.math_unary import *
from aioflow.ops.math_complex import *
from aioflow.ops.math_special import *
from aioflow.ops.comparison import *
from aioflow.ops.numerics import *
from aioflow.ops import bitwise as _bitwise_ops
from aioflow.ops import operators as _operators
from aioflow.kernels import elementwise as _elementwise_kernels
from aioflow.kernels import elementwise_checks as _elementwise_checks
from aioflow.kernels import elementwise_integer as _elementwise_integer
from aioflow.kernels import elementwise_special as _elementwise_special
from aioflow.ops.scoping import *
from aioflow.ops.state import *
from aioflow.ops.variable_replicas import *
from aioflow.ops.variables import *
from aioflow.ops.variable_collections import *
from aioflow.kernels import state as _state_kernels
from aioflow.ops import io as _io_ops
from aioflow.kernels import io as _io_kernels
from aioflow.ops.initializers import *
from aioflow.ops.variable_scope import *
from aioflow import initializers as initializers
from aioflow.ops.indexed import *
from aioflow.autodiff import *
from aioflow.ops import training as _training_ops
from aioflow.kernels import training as _training_kernels
from aioflow.ops.clip import *
from aioflow import train as train
from aioflow import bitwise as bitwise
from aioflow import math as math
from aioflow.ops.reduction import *
from aioflow.ops.matrix import *
from aioflow.ops.linalg_ops import *
from aioflow.ops.linalg_norm import *
from aioflow.ops.segment import *
from aioflow.ops.sorting import *
from aioflow.kernels import reduction as _reduction_kernels
from aioflow.kernels import matrix as _matrix_kernels
from aioflow.kernels import linalg as _linalg_kernels
from aioflow.kernels import segment as _segment_kernels
from aioflow.kernels import sorting as _sorting_kernels
from aioflow import linalg as linalg
from aioflow.ops.random import *
from aioflow import losses as losses
from aioflow import nn as nn
from aioflow import random as random
from aioflow import raw_ops as raw_ops
from aioflow import extend as extend
