"""aioflow: an asyncio-native dataflow engine. Build a graph, then `await session.run()`.

The names here, and in the namespaces `aioflow.nn`, `aioflow.train`, …, are the public interface. `__all__` lists them,
and tests/test_public_names.py checks that. Other modules may change from one version to the next.

The first use of a name loads its module, so that a program loads only what it uses.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.loading.preload import run_preload_hooks as _run_preload_hooks

_run_preload_hooks()

# ruff: noqa: E402, F403
# NumPy may be imported only after the preload hooks.

from aioflow.loading.later import homes as _homes
from aioflow.loading.later import load_later as _load_later
from aioflow.ops.public import _BUILDERS
from aioflow.release import RELEASE as _RELEASE

if _TYPE_CHECKING:
    # The namespaces.
    from aioflow import app as app
    from aioflow import bitwise as bitwise
    from aioflow import control_flow_ops as control_flow_ops
    from aioflow import data as data
    from aioflow import debugging as debugging
    from aioflow import distributed as distributed
    from aioflow import dtypes as dtypes
    from aioflow import errors as errors
    from aioflow import extend as extend
    from aioflow import flags as flags
    from aioflow import gfile as gfile
    from aioflow import graph_util as graph_util
    from aioflow import image as image
    from aioflow import initializers as initializers
    from aioflow import interop as interop
    from aioflow import io as io
    from aioflow import layers as layers
    from aioflow import linalg as linalg
    from aioflow import logging as logging
    from aioflow import lookup as lookup
    from aioflow import losses as losses
    from aioflow import manip as manip
    from aioflow import math as math
    from aioflow import metrics as metrics
    from aioflow import mixed_precision as mixed_precision
    from aioflow import nn as nn
    from aioflow import observe as observe
    from aioflow import python_io as python_io
    from aioflow import queue as queue
    from aioflow import random as random
    from aioflow import raw_ops as raw_ops
    from aioflow import resource_loader as resource_loader
    from aioflow import saved as saved
    from aioflow import signal as signal
    from aioflow import sparse as sparse
    from aioflow import spectral as spectral
    from aioflow import strings as strings
    from aioflow import summary as summary
    from aioflow import tensor_util as tensor_util
    from aioflow import train as train
    from aioflow import traits as traits
    from aioflow import typing as typing
    from aioflow import web as web

    # The engine: graphs, sessions, differentiation.
    from aioflow.autodiff import *
    from aioflow.concurrency.switch_interval import restore_switch_interval as restore_switch_interval
    from aioflow.config import RunOptions as RunOptions
    from aioflow.config import SessionConfig as SessionConfig
    from aioflow.config import TraceLevel as TraceLevel
    from aioflow.dtypes import *
    from aioflow.errors import OpError as OpError
    from aioflow.formats.tensor_messages import make_ndarray as make_ndarray
    from aioflow.formats.tensor_messages import make_tensor_proto as make_tensor_proto
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
    from aioflow.logging import get_logger as get_logger
    from aioflow.ops.apply import constant as constant
    from aioflow.ops.apply import convert_to_tensor as convert_to_tensor
    from aioflow.ops.apply import register_tensor_conversion_function as register_tensor_conversion_function
    from aioflow.ops.core import tuple_ as _tuple

    # The builders of all ops.
    from aioflow.ops.public import *
    from aioflow.ops.sparse.indexed_slices import (
        convert_to_tensor_or_indexed_slices as convert_to_tensor_or_indexed_slices,
    )
    from aioflow.ops.transfer import compressed as compressed
    from aioflow.protos.classes import AttrValue as AttrValue
    from aioflow.protos.classes import ConfigProto as ConfigProto
    from aioflow.protos.classes import Event as Event
    from aioflow.protos.classes import GPUOptions as GPUOptions
    from aioflow.protos.classes import GraphOptions as GraphOptions
    from aioflow.protos.classes import HistogramProto as HistogramProto
    from aioflow.protos.classes import LogMessage as LogMessage
    from aioflow.protos.classes import MetaGraphDef as MetaGraphDef
    from aioflow.protos.classes import NameAttrList as NameAttrList
    from aioflow.protos.classes import OptimizerOptions as OptimizerOptions
    from aioflow.protos.classes import SessionLog as SessionLog
    from aioflow.protos.classes import Summary as Summary
    from aioflow.protos.classes import SummaryMetadata as SummaryMetadata
    from aioflow.protos.classes import TensorInfo as TensorInfo
    from aioflow.runtime.device_list import DeviceAttributes as DeviceAttributes
    from aioflow.runtime.device_list import list_devices as list_devices
    from aioflow.runtime.stats import RunMetadata as RunMetadata
    from aioflow.session.batching import Batched as Batched
    from aioflow.session.batching import BatchStatistics as BatchStatistics
    from aioflow.session.batching import Padding as Padding
    from aioflow.session.interactive import InteractiveSession as InteractiveSession
    from aioflow.session.session import Session as Session
    from aioflow.session.session import get_default_session as get_default_session

    tuple = _tuple

_NAMESPACES = [
    "app",
    "bitwise",
    "control_flow_ops",
    "data",
    "debugging",
    "distributed",
    "dtypes",
    "errors",
    "extend",
    "flags",
    "gfile",
    "graph_util",
    "image",
    "initializers",
    "interop",
    "io",
    "layers",
    "linalg",
    "logging",
    "lookup",
    "losses",
    "manip",
    "math",
    "metrics",
    "mixed_precision",
    "nn",
    "observe",
    "python_io",
    "queue",
    "random",
    "raw_ops",
    "resource_loader",
    "saved",
    "signal",
    "sparse",
    "spectral",
    "strings",
    "summary",
    "tensor_util",
    "train",
    "traits",
    "typing",
    "web",
]

_LATER = {
    **{name: f"{__name__}.{name}" for name in _NAMESPACES},
    **_homes(
        {
            "aioflow.autodiff": (
                "AggregationMethod NoGradient NotDifferentiable RegisterGradient UnconnectedGradients custom_gradient "
                "grad_pass_through gradients hessians no_gradient recompute_grad"
            ),
            "aioflow.config": "RunOptions SessionConfig TraceLevel",
            "aioflow.dtypes": (
                "DType as_dtype bfloat16 bool complex64 complex128 double float16 float32 float64 half int8 int16 "
                "int32 int64 resource string uint8 uint16 uint32 uint64"
            ),
            "aioflow.errors": "OpError",
            "aioflow.graph.default_graph": "get_default_graph reset_default_graph",
            "aioflow.graph.device_spec": "DeviceSpec",
            "aioflow.formats.tensor_messages": "make_ndarray make_tensor_proto",
            "aioflow.graph.graph": "Graph GraphKeys Operation Tensor",
            "aioflow.graph.graphdef": "GraphDef NodeDef",
            "aioflow.graph.indexed_slices": "IndexedSlices",
            "aioflow.graph.shapes": "Dimension TensorShape",
            "aioflow.logging": "get_logger",
            "aioflow.ops.apply": "constant convert_to_tensor register_tensor_conversion_function",
            "aioflow.ops.core": "tuple=tuple_",
            "aioflow.ops.sparse.indexed_slices": "convert_to_tensor_or_indexed_slices",
            "aioflow.ops.transfer": "compressed",
            "aioflow.protos.classes": (
                "AttrValue ConfigProto Event GPUOptions GraphOptions HistogramProto LogMessage MetaGraphDef "
                "NameAttrList OptimizerOptions SessionLog Summary SummaryMetadata TensorInfo"
            ),
            "aioflow.runtime.device_list": "DeviceAttributes list_devices",
            "aioflow.runtime.stats": "RunMetadata",
            "aioflow.session.batching": "BatchStatistics Batched Padding",
            "aioflow.session.interactive": "InteractiveSession",
            "aioflow.session.session": "Session get_default_session",
            "aioflow.concurrency.switch_interval": "restore_switch_interval",
        }
    ),
    **_BUILDERS,
}

_load_later(__name__, _LATER)
_load_later(f"{__name__}.errors")  # a module of the lowest layer, which cannot import this function

__version__ = _RELEASE
__all__ = sorted(_LATER)
