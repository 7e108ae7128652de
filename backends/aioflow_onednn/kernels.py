"""The kernels of the CPU device that oneDNN does faster than NumPy; importing this module registers them.

Each falls back on the kernel that stands below it: for products that are too small, windows that oneDNN does not take,
empty arrays, and where a session wants reproducible results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, TypeAlias

from aioflow.kernels.convert import as_ints
from aioflow.kernels.fused import PRODUCTS, epilogue_of, product_binding
from aioflow.kernels.nn.windows import Convolution
from aioflow.kernels.registry import HOST, KERNELS, Binding, Body, Converter, binder
from aioflow.ops.fused import ORIGINS
from aioflow_numpy.conv_shapes import Padding, Pair, Windows, from_nhwc, shape_to_nhwc, to_nhwc, windows
from aioflow_numpy.fused_blocks import BlockChain
from aioflow_onednn import convolutions, products
from aioflow_onednn.codes import Algorithm
from aioflow_onednn.filters import Filters, PackedFilter
from aioflow_onednn.library import Activation
from aioflow_onednn.primitives import Array, Finish
from aioflow_onednn.primitives import plain as in_one_piece

__all__: list[str] = []

Shape: TypeAlias = tuple[int, ...]
Maker: TypeAlias = Callable[[Binding, Body], Body]

_PRIORITY: Final = 1
_WORTHWHILE: Final = 2**16  # multiplications of a convolution
# What oneDNN does with a result before it writes it; the same bits, but for NaN (`convolutions.Activated`).
_ACTIVATIONS: Final = {
    "Relu": Activation(Algorithm.ELTWISE_RELU),
    "Relu6": Activation(Algorithm.ELTWISE_CLIP, 0.0, 6.0),
}
_OF_INPUTS: Final = ("input_dtypes", "input_dims", "constants")
_REMEMBERED: Final = 16  # shapes for each node


def _faster(op: str, host: Mapping[str, Converter] | None = None) -> Callable[[Maker], Maker]:
    """Register what makes the body of a node of float32, given the body of the kernel below."""

    def register(make: Maker) -> Maker:
        @binder(op, device=HOST, dtypes={"T": "float32"}, host=host, fresh=True, priority=_PRIORITY)
        def bind(binding: Binding) -> Body:
            plain = KERNELS.get(op, HOST, binding.attrs, below=_PRIORITY).bind(binding)
            return plain if binding.reproducible else make(binding, plain)

        return make

    return register


@_faster("MatMul")
def matmul(binding: Binding, plain: Body) -> Body:
    operands = _operands(binding)

    def body(a: Any, b: Any) -> Any:
        found = operands(a, b)
        return plain(a, b) if found is None else products.matmul(*found)

    return body


@_faster("_FusedMatMul")
def fused_matmul(binding: Binding, plain: Body) -> Body:
    """A bias goes with the product, and what follows is done with each part of it while that is in the cache."""
    if not _is_usual(binding):
        return plain
    operands, finish = _operands(binding), _finish(binding)

    def body(a: Any, b: Any, args: Sequence[Array]) -> Any:
        found = operands(a, b)
        if found is None or not _are_biases(args, found[1].shape[1]):
            return plain(a, b, args)
        return products.matmul(*found, in_one_piece(args[0]) if args else None, finish)

    return body


def _operands(binding: Binding) -> Callable[[Any, Any], tuple[Any, Any] | None]:
    """The two matrices to multiply, or None where the kernel below is as quick, or says what is wrong with them."""
    transpose_a, transpose_b = binding.attrs["transpose_a"], binding.attrs["transpose_b"]

    def operands(a: Any, b: Any) -> tuple[Any, Any] | None:
        left, right = a.T if transpose_a else a, b.T if transpose_b else b
        if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
            return None
        return None if left.size * right.shape[1] < products.WORTHWHILE else (left, right)

    return operands


def _are_biases(args: Sequence[Array], size: int) -> bool:
    return all(bias.shape == (size,) for bias in args)


def _is_usual(binding: Binding) -> bool:
    """Whether what follows the product is as the optimizer writes it: at most one bias, and that first."""
    ops = binding.attrs["fused_ops"]
    return binding.attrs["num_args"] == ("BiasAdd" in ops[:1]) and "BiasAdd" not in ops[1:]


def _finish(binding: Binding) -> Finish | None:
    """What follows the product of a fused node and its bias, if it has one."""
    attrs = dict(binding.attrs)
    if attrs["num_args"]:
        attrs |= {"num_args": 0, "fused_ops": attrs["fused_ops"][1:]}
        attrs |= {name: [attrs[name][0], *attrs[name][2:]] for name in ORIGINS}
    epilogue = epilogue_of(replace(binding, attrs=attrs, **{name: getattr(binding, name)[:2] for name in _OF_INPUTS}))
    if epilogue is None:
        return None
    blocks = BlockChain(epilogue)

    def finish(block: Array) -> None:
        made = blocks.run((block,), block, threads=False)
        if made is not block:
            block[...] = made

    return finish


def _activated(binding: Binding, kernel: PackedFilter) -> convolutions.Activated | None:
    """What follows the product of a fused node, where oneDNN has it and all but the image is constant."""
    ops, biases = binding.attrs["fused_ops"], binding.constants[2:]
    activation = _ACTIVATIONS.get(ops[-1]) if len(ops) == len(biases) + 1 else None
    if activation is None or any(bias is None for bias in biases):
        return None
    return convolutions.Activated(activation, kernel.norm, biases[0] if biases else None)


def _known(size: Pair, kernel: Pair, strides: Pair, dilations: Pair, pads: Padding, count: int) -> tuple[Any, ...]:
    return strides, pads, dilations


class _Windows:
    """The windows of a node's convolution, and how its filters lie, for the shapes of its image and filter."""

    def __init__(self, binding: Binding) -> None:
        self._shared = Convolution(binding, _known)
        self._depthwise = self._shared.depthwise
        self.data_format: str = binding.attrs["data_format"]
        self.of = lru_cache(maxsize=_REMEMBERED)(self._of)

    def _of(self, image: Shape, kernel: Shape) -> tuple[Windows, Filters] | None:
        """None where the kernel below is the better one, which checks the shapes, too. Raises InvalidArgumentError."""
        (strides, pads, dilations), _ = self._shared.of(image, kernel)
        shape = shape_to_nhwc(image, self.data_format)
        if not math.prod(kernel) or not math.prod(shape):
            return None
        g = windows(shape, (kernel[0], kernel[1]), strides, pads, dilations)
        filters = Filters(g.c, 1, g.c * kernel[3]) if self._depthwise else Filters(g.c // kernel[2], *kernel[2:])
        if g.rows * filters.size(g) < _WORTHWHILE or not convolutions.fits(g):
            return None
        return g, filters

    def image(self, array: Array) -> Array:
        """As NHWC, and contiguous."""
        return in_one_piece(to_nhwc(array, self.data_format))

    def result(self, array: Array) -> Array:
        """An NHWC array in the node's layout."""
        return from_nhwc(array, self.data_format)


@_faster("Conv2D")
@_faster("DepthwiseConv2dNative")
def conv(binding: Binding, plain: Body) -> Body:
    known = _Windows(binding)
    constant = None if binding.constants[1] is None else PackedFilter(binding.constants[1])  # copied by the first step

    def body(image: Array, kernel: Array) -> Array:
        found = known.of(image.shape, kernel.shape)
        if found is None:
            made: Array = plain(image, kernel)
            return made
        g, filters = found
        return known.result(convolutions.forward(known.image(image), constant or kernel, g, filters))

    return body


@_faster("_FusedConv2D")
@_faster("_FusedDepthwiseConv2dNative")
def fused_conv(binding: Binding, plain: Body) -> Body:
    """As `fused_matmul`."""
    if not _is_usual(binding):
        return plain
    known, finish = _Windows(product_binding(binding, PRODUCTS[binding.op_type])), _finish(binding)
    constant = None if binding.constants[1] is None else PackedFilter(binding.constants[1])
    activated = None if constant is None else _activated(binding, constant)

    def body(image: Array, kernel: Array, args: Sequence[Array]) -> Array:
        found = known.of(image.shape, kernel.shape)
        if found is None or not _are_biases(args, found[1].outputs):
            made: Array = plain(image, kernel, args)
            return made
        g, filters = found
        bias = in_one_piece(args[0]) if args else None
        made = convolutions.forward(known.image(image), constant or kernel, g, filters, bias, finish, activated)
        return known.result(made)

    return body


@_faster("Conv2DBackpropInput", host={"input_sizes": as_ints})
@_faster("DepthwiseConv2dNativeBackpropInput", host={"input_sizes": as_ints})
def conv_by_input(binding: Binding, plain: Body) -> Body:
    known = _Windows(binding)

    def body(input_sizes: Shape, kernel: Array, out_backprop: Array) -> Array:
        found = known.of(input_sizes, kernel.shape)
        gradient = known.image(out_backprop) if found and out_backprop.ndim == 4 else out_backprop
        if found is None or not _is_of(gradient, *found) or found[0].c == 1:
            made: Array = plain(input_sizes, kernel, out_backprop)
            return made
        return known.result(convolutions.backprop_input(kernel, gradient, *found))

    return body


@_faster("Conv2DBackpropFilter", host={"filter_sizes": as_ints})
@_faster("DepthwiseConv2dNativeBackpropFilter", host={"filter_sizes": as_ints})
def conv_by_filter(binding: Binding, plain: Body) -> Body:
    known = _Windows(binding)

    def body(image: Array, filter_sizes: Shape, out_backprop: Array) -> Array:
        found = known.of(image.shape, filter_sizes)
        gradient = known.image(out_backprop) if found and out_backprop.ndim == 4 else out_backprop
        if found is None or not _is_of(gradient, *found):
            made: Array = plain(image, filter_sizes, out_backprop)
            return made
        return convolutions.backprop_filter(known.image(image), gradient, *found).reshape(filter_sizes)

    return body


def _is_of(gradient: Array, g: Windows, filters: Filters) -> bool:
    """Whether a gradient has the shape of the convolution."""
    shape: Shape = gradient.shape
    return shape == (g.n, g.oh, g.ow, filters.outputs)
