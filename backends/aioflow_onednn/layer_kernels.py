"""Kernels of layers without filters, and of batches of products, by oneDNN; importing this module registers them.

Each falls back on the kernel below it, like those of `kernels`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from aioflow.kernels.convert import as_int, as_ints
from aioflow.kernels.joinable import Joinable
from aioflow.kernels.nn.windows import Pool
from aioflow.kernels.registry import Binding, KernelBody
from aioflow.memory.values import Array, Shape, Value
from aioflow.ops.nn.geometry import Pair
from aioflow_numpy.conv_shapes import AxisPads, windows
from aioflow_onednn import batch_products, layer_norm, local_response, normalization, pooling
from aioflow_onednn import softmax as softmaxes
from aioflow_onednn.codes import Algorithm
from aioflow_onednn.parts import ConcatPart, PoolPart
from aioflow_onednn.primitives import plain as in_one_piece
from aioflow_onednn.registration import faster
from aioflow_onednn.sequences import join

_REMEMBERED: Final = 16  # shapes for each node


def _known(
    size: Pair, kernel: Pair, strides: Pair, dilations: Pair, pads: AxisPads, count: int
) -> tuple[Pair, Pair, AxisPads]:
    return kernel, strides, pads


class _Pools:
    """The pools of a node, by the shape of the image."""

    def __init__(self, binding: Binding, algorithm: Algorithm) -> None:
        self._shared, self._algorithm = Pool(binding, _known), algorithm
        self._is_last = binding.attrs["data_format"] == "NHWC"  # with channels first, oneDNN is slower than NumPy
        self.of = lru_cache(maxsize=_REMEMBERED)(self._of)

    def _of(self, image: Shape) -> tuple[pooling.PoolSpec, Shape] | None:
        """Return the pool and the shape of its result; None where the kernel below is faster.

        Raises:
            InvalidArgumentError: the shape of the image does not fit.
        """
        (kernel, strides, pads), made = self._shared.of(image)
        if not self._is_last:
            return None
        g = windows(image, kernel, strides, pads)
        return (pooling.PoolSpec(self._algorithm, g), made) if pooling.fits(g) else None


@faster("MaxPool")
@faster("AvgPool")
def pool(binding: Binding, plain: KernelBody) -> KernelBody:
    is_max = binding.op_type == "MaxPool"
    known = _Pools(binding, Algorithm.POOLING_MAX if is_max else Algorithm.POOLING_AVG_EXCLUDE_PADDING)

    def body(image: Array) -> Value:
        found = known.of(image.shape)
        made = None if found is None else pooling.forward(in_one_piece(image), found[0])
        return plain(image) if made is None else made

    return Joinable(body, PoolPart(known.of), join)


@faster("ConcatV2", host={"axis": as_int})
def concat(binding: Binding, plain: KernelBody) -> KernelBody:
    """Bind NumPy's concatenation, which may be a part of a plan."""
    return Joinable(plain, ConcatPart(), join)


@faster("MaxPoolGrad")
def max_pool_grad(binding: Binding, plain: KernelBody) -> KernelBody:
    """Bind the gradient of a max pool, which like TensorFlow's does not read the result of the pool."""
    known = _Pools(binding, Algorithm.POOLING_MAX)

    def body(orig_input: Array, orig_output: Array, grad: Array) -> Value:
        found, made = known.of(orig_input.shape), None
        if found is not None and orig_output.shape == grad.shape == found[1]:
            made = pooling.max_backprop(in_one_piece(orig_input), in_one_piece(grad), found[0])
        return plain(orig_input, orig_output, grad) if made is None else made

    return body


@faster("AvgPoolGrad", host={"orig_input_shape": as_ints})
def avg_pool_grad(binding: Binding, plain: KernelBody) -> KernelBody:
    known = _Pools(binding, Algorithm.POOLING_AVG_EXCLUDE_PADDING)

    def body(orig_input_shape: Shape, grad: Array) -> Value:
        found = known.of(orig_input_shape)
        if found is None or grad.shape != found[1]:
            return plain(orig_input_shape, grad)
        return pooling.backprop(in_one_piece(grad), found[0])

    return body


@faster("Softmax")
@faster("LogSoftmax")
def softmax(binding: Binding, plain: KernelBody) -> KernelBody:
    algorithm = Algorithm.SOFTMAX_ACCURATE if binding.op_type == "Softmax" else Algorithm.SOFTMAX_LOG

    def body(logits: Array) -> Value:
        if not logits.ndim or logits.size < softmaxes.WORTHWHILE:
            return plain(logits)
        made = softmaxes.softmax(in_one_piece(logits).reshape(-1, logits.shape[-1]), algorithm)
        return plain(logits) if made is None else made.reshape(logits.shape)

    return body


@faster("BatchMatMul")
@faster("BatchMatMulV2")
def batch_matmul(binding: Binding, plain: KernelBody) -> KernelBody:
    adj_x, adj_y = bool(binding.attrs["adj_x"]), bool(binding.attrs["adj_y"])

    def body(x: Array, y: Array) -> Value:
        fits = x.ndim > 2 and x.shape[:-2] == y.shape[:-2] and x.size and y.size
        if not fits or x.shape[-2 if adj_x else -1] != y.shape[-1 if adj_y else -2]:
            return plain(x, y)
        made = batch_products.batch_matmul(in_one_piece(x), in_one_piece(y), adj_x, adj_y)
        return plain(x, y) if made is None else made

    return body


class _Norms:
    """The batch normalization of a node, for images with channels last."""

    def __init__(self, binding: Binding) -> None:
        data_format: str = binding.attrs["data_format"]
        self._rank = len(data_format) if data_format.endswith("C") else -1
        self.epsilon, self.is_training = float(binding.attrs["epsilon"]), bool(binding.attrs["is_training"])

    def takes(self, x: Array, *vectors: Array) -> bool:
        """Return True if oneDNN is faster and the arguments fit; the kernel below reports those that do not."""
        if x.ndim != self._rank or x.size < normalization.WORTHWHILE:
            return False
        return all(vector.shape == x.shape[-1:] and vector.dtype == x.dtype for vector in vectors)


def _flat(x: Array) -> Array:
    return in_one_piece(x).reshape(-1, x.shape[-1])


@faster("FusedBatchNorm")
@faster("FusedBatchNormV2")
@faster("FusedBatchNormV3")
def batch_norm(binding: Binding, plain: KernelBody) -> KernelBody:
    norms, factor = _Norms(binding), np.float32(binding.attrs["exponential_avg_factor"])
    more = (np.zeros((), np.float32),) if len(binding.output_dtypes) == 6 else ()

    def train(x: Array, scale: Array, offset: Array, mean: Array, variance: Array) -> tuple[Array, ...]:
        flat = _flat(x)
        made, new_mean, biased = normalization.trained(flat, in_one_piece(scale), in_one_piece(offset), norms.epsilon)
        count = len(flat)
        # Bessel's correction, n / (n - 1): TensorFlow keeps the unbiased variance, and normalizes with the biased one.
        unbiased = biased * np.float32(count / max(count - 1, 1))
        # A copy, since fresh outputs share no memory.
        kept = new_mean.copy(), unbiased
        if factor != 1:
            keep = np.float32(1) - factor
            kept = mean * keep + new_mean * factor, variance * keep + unbiased * factor
        return made.reshape(x.shape), *kept, new_mean, biased

    def infer(x: Array, scale: Array, offset: Array, mean: Array, variance: Array) -> tuple[Array, ...]:
        given = (in_one_piece(mean), in_one_piece(variance), in_one_piece(scale), in_one_piece(offset))
        made = normalization.normalized(_flat(x), *given, norms.epsilon).reshape(x.shape)
        return made, mean.copy(), variance.copy(), mean.copy(), variance.copy()

    def body(x: Array, scale: Array, offset: Array, mean: Array, variance: Array) -> Value:
        # In training, the former statistics are read only for a moving average.
        given = () if norms.is_training and factor == 1 else (mean, variance)
        if not norms.takes(x, scale, offset, *given):
            return plain(x, scale, offset, mean, variance)
        made = (train if norms.is_training else infer)(x, scale, offset, mean, variance)
        return (*made, *(each.copy() for each in more))

    return body


@faster("FusedBatchNormGrad")
@faster("FusedBatchNormGradV2")
@faster("FusedBatchNormGradV3")
def batch_norm_grad(binding: Binding, plain: KernelBody) -> KernelBody:
    norms = _Norms(binding)

    def body(y_backprop: Array, x: Array, scale: Array, mean: Array, variance: Array, *unused: Array) -> Value:
        if y_backprop.shape != x.shape or not norms.takes(x, scale, mean, variance):
            return plain(y_backprop, x, scale, mean, variance, *unused)
        given = (in_one_piece(mean), in_one_piece(variance), in_one_piece(scale))
        made, by_scale, by_shift = normalization.gradient(
            _flat(y_backprop), _flat(x), *given, norms.epsilon, norms.is_training
        )
        return made.reshape(x.shape), by_scale, by_shift, np.zeros(0, np.float32), np.zeros(0, np.float32)

    return body


@faster("_LayerNorm")
def layer_normalization(binding: Binding, plain: KernelBody) -> KernelBody:
    epsilon = float(binding.attrs["epsilon"])

    def body(x: Array, scale: Array, offset: Array) -> Value:
        if not x.size or x.size < layer_norm.WORTHWHILE:
            return plain(x, scale, offset)
        made = layer_norm.normalized(_flat(x), in_one_piece(scale), in_one_piece(offset), epsilon)
        return made.reshape(x.shape)

    return body


def _lrn_of(binding: Binding) -> local_response.LrnSpec:
    radius, numbers = int(binding.attrs["depth_radius"]), (float(binding.attrs[n]) for n in ("bias", "alpha", "beta"))
    return local_response.LrnSpec(radius, *numbers)


@faster("LRN")
def lrn(binding: Binding, plain: KernelBody) -> KernelBody:
    spec = _lrn_of(binding)

    def body(image: Array) -> Value:
        if image.ndim != 4 or image.size < local_response.WORTHWHILE:
            return plain(image)
        made = local_response.forward(_flat(image), spec)
        return plain(image) if made is None else made.reshape(image.shape)

    return body if spec.fits else plain


@faster("LRNGrad")
def lrn_grad(binding: Binding, plain: KernelBody) -> KernelBody:
    spec = _lrn_of(binding)

    def body(grads: Array, image: Array, output: Array) -> Value:
        fits = image.ndim == 4 and grads.shape == image.shape == output.shape
        if not fits or image.size < local_response.WORTHWHILE:
            return plain(grads, image, output)
        made = local_response.gradient(_flat(grads), _flat(image), _flat(output), spec)
        return plain(grads, image, output) if made is None else made.reshape(image.shape)

    return body if spec.fits else plain
