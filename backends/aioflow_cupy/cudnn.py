"""Convolutions with cuDNN's graph interface, if `nvidia-cudnn-frontend` is installed (the extra `cudnn`).

CuPy has had no cuDNN since version 14. Each kernel plans a graph for its shapes, and keeps the last 64. The channels
are last in memory (NHWC). The matrix products of `convolution` compute what cuDNN is not asked for (float64, integers)
and what it has no plan for, such as groups.
"""

from __future__ import annotations

import importlib
from functools import cache, lru_cache
from typing import Any, Final

from aioflow.graph import dtypes
from aioflow.kernels.registry import Binding
from aioflow.kernels.registry import KernelBody as Convolution
from aioflow.memory.values import Array, Namespace, Shape
from aioflow_cupy.windows import ImageWindows

_TYPES: Final = {dtypes.float32: "FLOAT", dtypes.float16: "HALF", dtypes.bfloat16: "BFLOAT16"}


@cache
def _frontend() -> Any:
    """Return the module, or None if it (or the library that it needs) is not installed."""
    try:
        cudnn: Any = importlib.import_module("cudnn")
        cudnn.backend_version()  # loads the library, which is not part of the frontend
    except (ImportError, OSError, RuntimeError):
        return None
    return cudnn


def preferred(name: str, binding: Binding) -> Convolution | None:
    """Return cuDNN's version of the function `name` of `convolution`, which may raise NotPlannedError.

    Return None if the node's dtype is not float32, float16 or bfloat16, or cuDNN is not installed or not enabled.
    """
    dtype = binding.output_dtypes[0]
    if dtype not in _TYPES or not getattr(binding.backend, "uses_cudnn", False) or _frontend() is None:
        return None
    planner = _Planner(_frontend(), _TYPES[dtype])
    made: Convolution = getattr(planner, name)
    return made


class NotPlannedError(Exception):
    """Error: cuDNN has no plan for these shapes, or the convolution is in groups."""


class _Planner:
    """The plans of one node's convolution by operation, shapes and windows. They run on the current stream."""

    def __init__(self, cudnn: Any, kind: str) -> None:
        self._cudnn = cudnn
        self._type = getattr(cudnn.data_type, kind)
        self._handles: dict[int, Any] = {}
        self._plan = lru_cache(maxsize=64)(self._make)

    def forward(self, xp: Namespace, image: Array, kernel: Array, g: ImageWindows) -> Array:
        """Compute `convolution.forward`."""
        out = xp.empty((image.shape[0], *g.count, kernel.shape[3]), image.dtype)
        return self._run(xp, "conv_fprop", (image, _outputs_first(xp, kernel)), out, g)

    def backprop_input(
        self, xp: Namespace, input_shape: Shape, kernel: Array, gradient: Array, g: ImageWindows
    ) -> Array:
        """Compute `convolution.backprop_input`."""
        out = xp.empty(input_shape, gradient.dtype)
        return self._run(xp, "conv_dgrad", (gradient, _outputs_first(xp, kernel)), out, g)

    def backprop_filter(
        self, xp: Namespace, image: Array, filter_shape: Shape, gradient: Array, g: ImageWindows
    ) -> Array:
        """Compute `convolution.backprop_filter`."""
        kh, kw, inner, outputs = filter_shape
        out = xp.empty((outputs, kh, kw, inner), gradient.dtype)
        made = self._run(xp, "conv_wgrad", (gradient, image), out, g)
        return made.transpose(1, 2, 3, 0)

    def _run(self, xp: Namespace, name: str, inputs: tuple[Array, Array], out: Array, g: ImageWindows) -> Array:
        arrays: list[Any] = [xp.ascontiguousarray(a) for a in inputs]
        graph, tensors, result = self._plan(name, arrays[0].shape, arrays[1].shape, out.shape, g)
        # Released on return: the pool hands it out again only for later work of this stream.
        workspace: Any = xp.empty(graph.get_workspace_size(), xp.uint8)
        stream: Any = xp.cuda.get_current_stream()
        # Each time, because a handle keeps the stream of its last call.
        self._cudnn.set_stream(handle=self._handle(stream.device_id), stream=stream.ptr)
        # Addresses, because an export through DLPack makes CUDA's legacy default stream wait for the array, which is
        # not allowed during a capture, and CuPy does not export bfloat16.
        operands: list[Any] = [*arrays, out]
        addresses = {tensor: array.data.ptr for tensor, array in zip((*tensors, result), operands, strict=True)}
        graph.execute(addresses, workspace.data.ptr, handle=self._handle(stream.device_id))
        return out

    def _handle(self, device: int) -> Any:
        if device not in self._handles:
            self._handles[device] = self._cudnn.create_handle()
        return self._handles[device]

    def _make(self, name: str, first: Shape, second: Shape, out: Shape, g: ImageWindows) -> tuple[Any, list[Any], Any]:
        # The shapes of image and filter, each an operand or the result of the operation.
        image, kernel = {"conv_fprop": (first, second), "conv_dgrad": (out, second), "conv_wgrad": (second, out)}[name]
        # The filter is [co, kh, kw, c / groups].
        if image[3] != kernel[3]:
            raise NotPlannedError("a convolution in groups")
        try:
            return self._build(name, first, second, out, g)
        except self._cudnn.cudnnGraphNotSupportedError as error:
            raise NotPlannedError(str(error)) from error

    def _build(self, name: str, first: Shape, second: Shape, out: Shape, g: ImageWindows) -> tuple[Any, list[Any], Any]:
        cudnn = self._cudnn
        graph = cudnn.pygraph(
            io_data_type=self._type,
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
        )
        tensors = [graph.tensor(dim=_channels_second(s), stride=_strides(s)) for s in (first, second)]
        (top, bottom), (left, right) = g.pads
        names = {
            "conv_fprop": ("image", "weight"),
            "conv_dgrad": ("loss", "filter"),
            "conv_wgrad": ("loss", "image"),
        }[name]
        made = getattr(graph, name)(
            **dict(zip(names, tensors, strict=True)),
            pre_padding=[top, left],
            post_padding=[bottom, right],
            stride=list(g.strides),
            dilation=list(g.dilations),
        )
        made.set_output(True).set_dim(_channels_second(out)).set_stride(_strides(out))
        # The fallback has plans for graphs for which the heuristics propose none.
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        return graph, tensors, made


def _outputs_first(xp: Namespace, kernel: Array) -> Array:
    """Convert [kh, kw, c, co] to [co, kh, kw, c], cuDNN's layout of filters with the channels last."""
    return xp.ascontiguousarray(kernel.transpose(3, 0, 1, 2))


def _channels_second(shape: Shape) -> list[int]:
    # cuDNN names the axes n, c, h, w in any case; the strides say that channels are last.
    return [shape[0], shape[3], shape[1], shape[2]]


def _strides(shape: Shape) -> list[int]:
    _, height, width, channels = shape
    return [height * width * channels, 1, width * channels, channels]
