"""Kernels of the CPU device that are faster by oneDNN than by NumPy; importing this module registers them.

Each falls back on the kernel below it for small products, windows that oneDNN does not support and empty arrays, and
if the session requires reproducible results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Final, Generic, TypeVar

import numpy as np

from aioflow.concurrency.threads import is_loops_thread
from aioflow.graph.shapes import num_elements
from aioflow.kernels.convert import as_ints
from aioflow.kernels.fused import PRODUCTS, naming, product_binding
from aioflow.kernels.joinable import Joinable
from aioflow.kernels.nn.windows import Convolution
from aioflow.kernels.registry import Binding, KernelBody
from aioflow.memory.values import Array, Shape, Value
from aioflow.ops.nn.geometry import Pair
from aioflow_numpy.conv_shapes import AxisPads, Windows, from_nhwc, shape_to_nhwc, to_nhwc, windows
from aioflow_numpy.threads import thread_count
from aioflow_onednn import convolutions, half_products, integer_products, products
from aioflow_onednn.choices import CHOICES
from aioflow_onednn.epilogues import activated_of, finish_of, without_bias
from aioflow_onednn.filters import Filters, PackedFilter
from aioflow_onednn.forward import Forward
from aioflow_onednn.parts import ConvPart
from aioflow_onednn.primitives import Placed
from aioflow_onednn.primitives import plain as in_one_piece
from aioflow_onednn.registration import faster as _faster
from aioflow_onednn.sequences import join

T = TypeVar("T")

_WORTHWHILE: Final = 2**14  # minimum multiplications of a convolution
_REMEMBERED: Final = 16  # shapes for each node


@_faster("MatMul")
def matmul(binding: Binding, plain: KernelBody) -> KernelBody:
    if not products.are_quicker():
        return plain
    return _product(binding, plain, products.matmul, products.COLUMNS, products.WORTHWHILE)


@_faster("MatMul", dtype="bfloat16")
def matmul_of_halves(binding: Binding, plain: KernelBody) -> KernelBody:
    if not half_products.are_quicker():
        return plain
    return _product(binding, plain, half_products.matmul, 1, half_products.WORTHWHILE)


@_faster("_IntegerMatMul")
@_faster("_IntegerMatMul", dtype="float64")
@_faster("_IntegerBatchMatMulV2")
@_faster("_IntegerBatchMatMulV2", dtype="float64")
def matmul_of_integers(binding: Binding, plain: KernelBody) -> KernelBody:
    constant, dtype, limits = binding.constants[1], binding.attrs["T"].np_dtype, binding.attrs["Ta"]
    if constant is None or not integer_products.are_quicker():
        return plain
    known: list[integer_products.IntegerWeights | None] = []  # converted by the first step that needs them

    def body(a: Array, b: Array, zeros: Sequence[Array]) -> Value:
        zero = float(zeros[0]) if zeros else 0.0
        if a.ndim < 2 or a.shape[-1] != len(b) or a.size * b.shape[1] < integer_products.WORTHWHILE:
            return plain(a, b, zeros)
        if not known:
            known.append(integer_products.integer_weights(constant))
        weights = known[0]
        if weights is None or not (zero.is_integer() and limits.min <= zero <= limits.max):
            return plain(a, b, zeros)
        left = in_one_piece(a).reshape(-1, a.shape[-1])
        return integer_products.matmul(left, weights, int(zero), dtype).reshape(*a.shape[:-1], b.shape[1])

    return body


def _product(
    binding: Binding, plain: KernelBody, multiply: Callable[[Array, Array], Array], fewest: int, worthwhile: int
) -> KernelBody:
    """Bind a product of two matrices.

    The kernel below computes products with fewer than `fewest` columns or `worthwhile` multiplications. It also raises
    the error for matrices that do not fit.
    """
    transpose_a, transpose_b = binding.attrs["transpose_a"], binding.attrs["transpose_b"]
    a_dims, b_dims = binding.input_dims[:2]
    # Known shapes are checked once, not in each call.
    if a_dims is not None and b_dims is not None and len(a_dims) == len(b_dims) == 2:
        size, columns = num_elements(a_dims), b_dims[not transpose_b]
        if columns is not None and (columns < fewest or (size is not None and size * columns < worthwhile)):
            return plain

    def body(a: Array, b: Array) -> Value:
        left, right = a.T if transpose_a else a, b.T if transpose_b else b
        if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
            return plain(a, b)
        columns = right.shape[1]
        small = columns < fewest or left.size * columns < worthwhile
        return plain(a, b) if small else multiply(left, right)

    return body


def _known(
    size: Pair, kernel: Pair, strides: Pair, dilations: Pair, pads: AxisPads, count: int
) -> tuple[Pair, AxisPads, Pair]:
    return strides, pads, dilations


@dataclass(slots=True)
class _Found(Generic[T]):
    """A convolution that oneDNN has prepared for some shapes.

    Attributes:
        made: The prepared convolution.
        shape: Key of the shapes and of all else that affects the time.
        is_quicker: Whether oneDNN is faster; None until that is measured.
    """

    made: T
    shape: str
    is_quicker: bool | None


class _Windows(Generic[T]):
    """The prepared convolutions of a node, by the shapes of image and filter.

    Args:
        binding: The node of the convolution.
        make: Prepares a convolution for windows and filters.
        fused: The fused node that contains the convolution, if there is one, to which errors are attributed.
    """

    def __init__(self, binding: Binding, make: Callable[[Windows, Filters], T], fused: Binding | None = None) -> None:
        self._make = make
        self._shared = Convolution(binding, _known)
        self._depthwise = self._shared.depthwise
        self.data_format: str = binding.attrs["data_format"]
        self._name = f"{binding.op_type} {self.data_format}"
        if any(map(_is_filter, binding.constants)):
            self._name += " constant"
        self._is_part = fused is not None
        self._found = lru_cache(maxsize=_REMEMBERED)(self._look if fused is None else naming(fused, self._look))

    def of(self, image: Shape, kernel: Shape) -> T | None:
        """Return the prepared convolution; None where the kernel below computes these shapes, and checks them.

        Raises:
            InvalidArgumentError: the shapes do not fit.
        """
        found = self._found(image, kernel)
        return None if found is None or found.is_quicker is False else found.made

    def compute(self, image: Shape, kernel: Shape, ours: Callable[[T], Array], below: Callable[[], Array]) -> Array:
        """Compute by oneDNN or by the kernel below.

        The first call with a shape measures which of the two is faster, except in the thread of an event loop, which
        the measurement would block.

        Args:
            image: Shape of the image.
            kernel: Shape of the filter.
            ours: Computes by oneDNN.
            below: Computes by the kernel below.

        Raises:
            InvalidArgumentError: the shapes do not fit.
        """
        found = self._found(image, kernel)
        if found is None:
            return below()
        # Measured later, by a step in another thread. Until then oneDNN computes, which is faster for most shapes.
        if found.is_quicker is None and is_loops_thread():
            return ours(found.made)
        if found.is_quicker is None and self._is_part:
            # The kernel below measures the convolution alone: the epilogue costs both kernels about the same.
            below()
            found.is_quicker = CHOICES.find(found.shape) is not False
        if found.is_quicker is None:
            found.is_quicker, value = CHOICES.measure(found.shape, lambda: ours(found.made), below)
            return value
        return ours(found.made) if found.is_quicker else below()

    def _look(self, image: Shape, kernel: Shape) -> _Found[T] | None:
        (strides, pads, dilations), _ = self._shared.of(image, kernel)
        shape = shape_to_nhwc(image, self.data_format)
        if not math.prod(kernel) or not math.prod(shape):
            return None
        g = windows(shape, (kernel[0], kernel[1]), strides, pads, dilations)
        filters = Filters(g.c, 1, g.c * kernel[3]) if self._depthwise else Filters(g.c // kernel[2], *kernel[2:])
        if g.rows * filters.size(g) < _WORTHWHILE or not convolutions.fits(g):
            return None
        # The time depends on the number of threads, so that is a part of the key.
        numbers = (*astuple(g), filters.groups, filters.inputs, filters.outputs, thread_count())
        key = f"{self._name} {' '.join(map(str, numbers))}"
        return _Found(self._make(g, filters), key, CHOICES.find(key))

    def image(self, array: Array) -> Array:
        """Return the array as contiguous NHWC."""
        return in_one_piece(to_nhwc(array, self.data_format))

    def gradient(self, array: Array, g: Windows, filters: Filters) -> Array | None:
        """Return the array as `image` does; None if it does not have the shape of the convolution."""
        made = self.image(array) if array.ndim == 4 else array
        return made if made.shape == (g.n, g.oh, g.ow, filters.outputs) else None

    def result(self, array: Array) -> Array:
        """Return an NHWC array in the node's layout."""
        return from_nhwc(array, self.data_format)


@_faster("Conv2D")
@_faster("DepthwiseConv2dNative")
def conv(binding: Binding, plain: KernelBody) -> KernelBody:
    known = _Windows(binding, Forward)
    constant = None if binding.constants[1] is None else PackedFilter(binding.constants[1])  # packed by the first step

    def body(image: Array, kernel: Array) -> Array:
        def ours(forward: Forward) -> Array:
            return known.result(forward(known.image(image), constant or kernel))

        return known.compute(image.shape, kernel.shape, ours, lambda: plain(image, kernel))

    if constant is None or known.data_format != "NHWC":
        return body
    return Joinable(body, ConvPart(known.of, constant), join)


@_faster("_FusedConv2D")
@_faster("_FusedDepthwiseConv2dNative")
def fused_conv(binding: Binding, plain: KernelBody) -> KernelBody:
    """Bind a convolution with an epilogue."""
    rest = without_bias(binding)
    # A residual is read in the layout of the result, which is NHWC here.
    if rest is None or (rest.attrs["num_args"] and binding.attrs["data_format"] != "NHWC"):
        return plain
    finish = finish_of(rest)
    constant = None if binding.constants[1] is None else PackedFilter(binding.constants[1])
    activated = activated_of(rest, constant, binding.constants[2:3])
    count = binding.attrs["num_args"]

    def ready(g: Windows, filters: Filters) -> tuple[Forward, list[Shape]]:
        made = Forward(g, filters, count > 0, finish, activated)
        return made, [(filters.outputs,), made.shape][:count]

    known = _Windows(product_binding(binding, PRODUCTS[binding.op_type]), ready, binding)
    [fixed] = binding.constants[2:3] or (None,)
    # A constant bias is placed once, not in each step.
    held = None if fixed is None else Placed(in_one_piece(fixed))

    def body(image: Array, kernel: Array, args: Sequence[Array]) -> Array:
        def below() -> Array:
            made: Array = plain(image, kernel, args)
            return made

        def ours(found: tuple[Forward, list[Shape]]) -> Array:
            forward, shapes = found
            # The kernel below handles other shapes, or reports them.
            if [each.shape for each in args] != shapes:
                return below()
            bias = Placed(in_one_piece(args[0])) if args and held is None else held
            others = [in_one_piece(each) for each in args[1:]]
            return known.result(forward(known.image(image), constant or kernel, bias, *others))

        return known.compute(image.shape, kernel.shape, ours, below)

    if constant is None or known.data_format != "NHWC":
        return body
    return Joinable(body, ConvPart(lambda *shapes: (known.of(*shapes) or (None,))[0], constant), join)


@_faster("Conv2DBackpropInput", host={"input_sizes": as_ints})
@_faster("DepthwiseConv2dNativeBackpropInput", host={"input_sizes": as_ints})
def conv_by_input(binding: Binding, plain: KernelBody) -> KernelBody:
    known = _Windows(binding, _geometry)

    def body(input_sizes: Shape, kernel: Array, out_backprop: Array) -> Array:
        def below() -> Array:
            made: Array = plain(input_sizes, kernel, out_backprop)
            return made

        def ours(found: tuple[Windows, Filters]) -> Array:
            gradient = known.gradient(out_backprop, *found)
            return below() if gradient is None else known.result(convolutions.backprop_input(kernel, gradient, *found))

        return known.compute(input_sizes, kernel.shape, ours, below)

    return body


@_faster("Conv2DBackpropFilter", host={"filter_sizes": as_ints})
@_faster("DepthwiseConv2dNativeBackpropFilter", host={"filter_sizes": as_ints})
def conv_by_filter(binding: Binding, plain: KernelBody) -> KernelBody:
    known = _Windows(binding, _geometry)

    def body(image: Array, filter_sizes: Shape, out_backprop: Array) -> Array:
        def below() -> Array:
            made: Array = plain(image, filter_sizes, out_backprop)
            return made

        def ours(found: tuple[Windows, Filters]) -> Array:
            gradient = known.gradient(out_backprop, *found)
            if gradient is None:
                return below()
            return convolutions.backprop_filter(known.image(image), gradient, *found).reshape(filter_sizes)

        return known.compute(image.shape, filter_sizes, ours, below)

    return body


def _geometry(g: Windows, filters: Filters) -> tuple[Windows, Filters]:
    return g, filters


def _is_filter(constant: Array | None) -> bool:
    """Return True if a constant input of a convolution is its filter: sizes and biases have one dimension."""
    return constant is not None and np.ndim(constant) == 4
