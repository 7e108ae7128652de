"""Random products and convolutions, to compare oneDNN's kernels with NumPy's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aioflow.graph.dtypes import as_dtype, float32, int32
from aioflow.graph.opdef import OPS
from aioflow.kernels.registry import KERNELS, Binding
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.device import host

Array = np.ndarray[Any, Any]


def body(op: str, attrs: dict[str, Any], inputs: tuple[Any, ...], *, reproducible: bool, constants: Any = None) -> Any:
    """Return the function that a node of the op calls: NumPy's kernel if `reproducible`."""
    definition = OPS.get(op)
    every = {name: attr.default for name, attr in definition.attrs.items() if attr.default is not None}
    every |= {"T": float32, **attrs}
    dtypes = tuple(int32 if isinstance(value, tuple) else as_dtype(value.dtype) for value in flat(inputs))
    unknown = (None,) * len(dtypes)
    known, outputs = constants or unknown, len(definition.outputs)
    binding = Binding(
        *(op, op, every, dtypes, unknown, (float32,) * outputs, (None,) * outputs, known),
        *(host(), ResourceManager(), {}),
        reproducible=reproducible,
    )
    return KERNELS.get(op, "CPU", every).bind(binding)


@dataclass(frozen=True)
class Case:
    """A node's op, attributes and inputs.

    Attributes:
        op: The op.
        attrs: Its attributes.
        inputs: Its inputs; a list is one argument, a tuple of integers a shape.
        depth: Number of products that are summed for one element; 0 if the sums are exact.
    """

    op: str
    attrs: dict[str, Any]
    inputs: tuple[Any, ...]
    depth: int

    def agrees(self) -> bool:
        """Return whether both kernels agree within the rounding of float32 sums of `depth` numbers around 1."""
        expected = body(self.op, self.attrs, self.inputs, reproducible=True)(*self.inputs)
        for constants in (None, tuple(None if isinstance(value, tuple) else value for value in flat(self.inputs))):
            made = body(self.op, self.attrs, self.inputs, reproducible=False, constants=constants)(*self.inputs)
            pairs = zip(flat(made), flat(expected), strict=True)
            if not all(self._is_near(*pair) for pair in pairs):
                return False
        return True

    def _is_near(self, made: Array, expected: Array) -> bool:
        if made.shape != expected.shape or made.dtype != expected.dtype:
            return False
        if expected.flags.c_contiguous and not made.flags.c_contiguous:
            return False
        if not self.depth:
            return np.array_equal(made, expected)
        loss = 2e-6 * self.depth**0.5 + 2e-7 * self.depth
        return np.allclose(made, expected, rtol=1e-4, atol=loss, equal_nan=True)


def flat(inputs: Any) -> list[Any]:
    """Return every input or output of the node; a list holds those of one argument."""
    if not isinstance(inputs, tuple):
        return [inputs]
    return [one for value in inputs for one in (value if isinstance(value, list) else [value])]


def fused(case: Case, rng: np.random.Generator) -> Case:
    """Append a bias, another array, an activation, or several of these, as the optimizer fuses them."""
    if case.op not in ("MatMul", "Conv2D", "DepthwiseConv2dNative") or case.attrs.get("data_format") == "NCHW":
        return case
    shape = body(case.op, case.attrs, case.inputs, reproducible=True)(*case.inputs).shape
    activation = str(rng.choice(["", "Relu", "Relu6", "Tanh", "Sigmoid", "Elu", "Sigmoid Mul"])).split()
    args = [normal(rng, shape[-1])] if not activation or rng.integers(2) else []
    ops, operands, x = ["BiasAdd"] * len(args), [0, 1] * len(args), 0
    if args:
        adds = case.op != "MatMul" and bool(rng.integers(2))
        args += [normal(rng, *shape)] * adds
        x = 1 + len(args)
        if adds:
            ops, operands, x = [*ops, "AddV2"], [*operands, *rng.permutation((x, 2)).tolist()], x + 1
    if len(activation) == 2:  # x * sigmoid(x)
        operands += [x, *rng.permutation((x, 1 + len(args) + len(ops))).tolist()]
    else:
        operands += [x] * len(activation)
    ops += activation
    said = [str(number) for number in range(1 + len(ops))]
    attrs = {
        "num_args": len(args),
        "fused_ops": tuple(ops),
        "operands": tuple(operands),
        "nodes": said,
        "sources": said,
    }
    return Case(f"_Fused{case.op}", {**case.attrs, **attrs}, (*case.inputs, args), case.depth)


def normal(rng: np.random.Generator, *shape: int) -> Array:
    """Return normal numbers in a random layout: contiguous, sliced, transposed, or with negative steps."""
    kind = int(rng.integers(4))
    if kind == 0 or not shape:
        return rng.standard_normal(shape, np.float32)
    if kind == 1:
        larger = rng.standard_normal([size + 2 for size in shape], np.float32)
        return larger[tuple(slice(1, size + 1) for size in shape)]
    if kind == 2:
        return rng.standard_normal(shape[::-1], np.float32).T
    return rng.standard_normal([2 * size for size in shape], np.float32)[tuple(slice(None, None, -2) for _ in shape)]


def product(rng: np.random.Generator, most: int = 300) -> Case:
    """Return a product of two matrices; some are large enough for several threads."""
    rows, inner, columns = (int(rng.integers(1, most)) for _ in range(3))
    a, b = bool(rng.integers(2)), bool(rng.integers(2))
    left = normal(rng, *((inner, rows) if a else (rows, inner)))
    right = normal(rng, *((columns, inner) if b else (inner, columns)))
    return Case("MatMul", {"transpose_a": a, "transpose_b": b}, (left, right), inner)


def convolution(rng: np.random.Generator, most: int = 20) -> Case:
    """Return a convolution or one of its gradients: dense, grouped or depthwise."""
    n, h, w = (int(rng.integers(1, limit)) for limit in (5, most, most))
    kh, kw, groups, each, multiplier = (int(rng.integers(1, limit)) for limit in (6, 6, 4, 17, 17))
    sh, sw = (int(rng.integers(1, 4)) for _ in range(2))
    dh, dw = (int(rng.integers(1, 3)) if sh == sw == 1 else 1 for _ in range(2))
    if rng.random() < 0.2:  # a single column
        w = kw = 1
    depthwise = rng.random() < 0.3
    if depthwise:
        sw = sh  # required by the op
        groups, each, multiplier = int(rng.integers(1, 33)), 1, int(rng.integers(1, 4))
    nchw = bool(rng.integers(2))
    channels, outputs = groups * each, groups * multiplier
    kernel_shape = (kh, kw, channels, multiplier) if depthwise else (kh, kw, each, outputs)
    attrs: dict[str, Any] = {
        "strides": (1, 1, sh, sw) if nchw else (1, sh, sw, 1),
        "dilations": (1, 1, dh, dw) if nchw else (1, dh, dw, 1),
        "data_format": "NCHW" if nchw else "NHWC",
        "padding": "SAME" if rng.integers(2) else "VALID",
    }
    span = (kh - 1) * dh + 1, (kw - 1) * dw + 1
    h, w = max(h, span[0]), max(w, span[1])
    if attrs["padding"] == "SAME":
        oh, ow = -(-h // sh), -(-w // sw)
    else:
        oh, ow = (h - span[0]) // sh + 1, (w - span[1]) // sw + 1
    image = (n, channels, h, w) if nchw else (n, h, w, channels)
    made = (n, outputs, oh, ow) if nchw else (n, oh, ow, outputs)
    name = "DepthwiseConv2dNative" if depthwise else "Conv2D"
    match int(rng.integers(3)):
        case 0:
            return Case(name, attrs, (normal(rng, *image), normal(rng, *kernel_shape)), kh * kw * each)
        case 1:
            inputs: tuple[Any, ...] = (image, normal(rng, *kernel_shape), normal(rng, *made))
            return Case(f"{name}BackpropInput", attrs, inputs, kh * kw * multiplier)
        case _:
            inputs = (normal(rng, *image), kernel_shape, normal(rng, *made))
            return Case(f"{name}BackpropFilter", attrs, inputs, n * oh * ow)


def integer_product(rng: np.random.Generator) -> Case:
    """Return a product of 8-bit integers with weights, some of which are not 8-bit integers, less a zero point."""
    batch = [int(rng.integers(1, 4))] * int(rng.integers(2))
    rows, inner, columns = (int(rng.integers(1, limit)) for limit in (200, 200, 100))
    kind = np.dtype(rng.choice(["uint8", "int8"]))
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    a = rng.integers(least, most + 1, (*batch, rows, inner), kind)
    dtype = np.dtype(rng.choice(["float32", "float64"]))
    b = rng.integers(-128, 128, (inner, columns)).astype(rng.choice([dtype, np.dtype(np.int8)]))
    if b.dtype == dtype and not rng.integers(8):
        b.flat[rng.integers(b.size)] = rng.choice([128, -129, 0.5])
    zeros = [np.asarray(rng.integers(least, most + 1), dtype)] * int(rng.integers(2))
    if zeros and not rng.integers(8):
        zeros = [np.asarray(rng.choice([least - 1, most + 1, 0.5]), dtype)]
    attrs: dict[str, Any] = {"T": as_dtype(dtype), "Ta": as_dtype(kind), "Tb": as_dtype(b.dtype)}
    attrs |= {"num_zeros": len(zeros), "nodes": ["0"], "sources": ["0"]}
    return Case("_IntegerBatchMatMulV2" if batch else "_IntegerMatMul", attrs, (a[..., ::-1], b, zeros), 0)
