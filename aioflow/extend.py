"""The public API for packages that add ops, kernels or backends: see docs/extending.md and docs/howto/backend.md.

An op consists of a definition (`define_op`, with traits from `aioflow.traits`), a gradient (`gradient`, or
`not_differentiable`), and any number of kernels (`kernel`, `binder`, `elementwise`). Builders create its nodes. `make`
returns the single output tensor, `make_list` all outputs, `make_tuple` a named tuple, and `make_op` the node.
`apply_op` chooses the form of the result by the op. The `as_…` converters are for `host=` inputs.

A backend implements `Backend` and `BackendDevice`. `DeviceThreads` is an `Executor` for its device, `HostValues` binds
its kernels, and `host_device` is the CPU to compare with. `aioflow.testing.check_backend` checks the result.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.graph.gradient_registry import gradient as gradient
from aioflow.graph.gradient_registry import not_differentiable as not_differentiable
from aioflow.graph.opdef import OpDef as OpDef
from aioflow.graph.opdef import ShapeContext as ShapeContext
from aioflow.graph.opdef import define_op as define_op
from aioflow.graph.shapes import Dims as Dims
from aioflow.graph.shapes import broadcast_dims as broadcast_dims
from aioflow.graph.shapes import merge_dims as merge_dims
from aioflow.loading.later import homes as _homes
from aioflow.loading.later import load_later as _load_later
from aioflow.ops.apply import apply_op as apply_op
from aioflow.ops.apply import make as make
from aioflow.ops.apply import make_list as make_list
from aioflow.ops.apply import make_op as make_op
from aioflow.ops.apply import make_tuple as make_tuple

# ruff: noqa: TC004
if _TYPE_CHECKING:
    from aioflow.kernels.convert import as_array as as_array
    from aioflow.kernels.convert import as_bool as as_bool
    from aioflow.kernels.convert import as_int as as_int
    from aioflow.kernels.convert import as_ints as as_ints
    from aioflow.kernels.convert import as_text as as_text
    from aioflow.kernels.registry import ArrayBackend as ArrayBackend
    from aioflow.kernels.registry import Binding as Binding
    from aioflow.kernels.registry import KernelBody as KernelBody
    from aioflow.kernels.registry import KernelDef as KernelDef
    from aioflow.kernels.registry import Ufunc as Ufunc
    from aioflow.kernels.registry import binder as binder
    from aioflow.kernels.registry import elementwise as elementwise
    from aioflow.kernels.registry import kernel as kernel
    from aioflow.kernels.resources import resource_finder as resource_finder
    from aioflow.memory.values import Array as Array
    from aioflow.memory.values import Namespace as Namespace
    from aioflow.runtime.backend_api import Backend as Backend
    from aioflow.runtime.backend_api import BackendDevice as BackendDevice
    from aioflow.runtime.backend_api import Executor as Executor
    from aioflow.runtime.backend_api import MemoryStats as MemoryStats
    from aioflow.runtime.bind import BoundNode as BoundNode
    from aioflow.runtime.device import host as host_device
    from aioflow.runtime.executor import DeviceThreads as DeviceThreads
    from aioflow.runtime.host_values import HostValues as HostValues
    from aioflow.runtime.step import Step as Step

__all__ = [
    "Array",
    "ArrayBackend",
    "Backend",
    "BackendDevice",
    "Binding",
    "BoundNode",
    "DeviceThreads",
    "Dims",
    "Executor",
    "HostValues",
    "KernelBody",
    "KernelDef",
    "MemoryStats",
    "Namespace",
    "OpDef",
    "ShapeContext",
    "Step",
    "Ufunc",
    "apply_op",
    "as_array",
    "as_bool",
    "as_int",
    "as_ints",
    "as_text",
    "binder",
    "broadcast_dims",
    "define_op",
    "elementwise",
    "gradient",
    "host_device",
    "kernel",
    "make",
    "make_list",
    "make_op",
    "make_tuple",
    "merge_dims",
    "not_differentiable",
    "resource_finder",
]

_load_later(
    __name__,
    _homes(
        {
            "aioflow.kernels.convert": "as_array as_bool as_int as_ints as_text",
            "aioflow.kernels.registry": "ArrayBackend Binding KernelBody KernelDef Ufunc binder elementwise kernel",
            "aioflow.kernels.resources": "resource_finder",
            "aioflow.memory.values": "Array Namespace",
            "aioflow.runtime.backend_api": "Backend BackendDevice Executor MemoryStats",
            "aioflow.runtime.bind": "BoundNode",
            "aioflow.runtime.device": "host_device=host",
            "aioflow.runtime.executor": "DeviceThreads",
            "aioflow.runtime.host_values": "HostValues",
            "aioflow.runtime.step": "Step",
        }
    ),
)
