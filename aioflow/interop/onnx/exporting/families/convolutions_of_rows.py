"""Convolutions along one axis, which aioflow computes as those of images with one row."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Final

from aioflow.interop.onnx.exporting.families.convolutions import convolved, groups_of
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.patterns import Found
from aioflow.interop.onnx.exporting.rules import composed
from aioflow.interop.onnx.exporting.runnable import computed_in
from aioflow.interop.onnx.exporting.values import ModelValue
from aioflow.interop.onnx.exporting.windows import WindowAttributes, windows_of
from aioflow.ops.nn.geometry import Layout

# The second form is the result of importing ONNX's filters.
_KERNELS: Final = ("ExpandDims(w, place)", "Transpose(ExpandDims(w, place), order)")
_FORMS: Final = ("(cut := Squeeze({}))", "(cut := Squeeze(BiasAdd({}, bias)))", "BiasAdd((cut := Squeeze({})), bias)")


def _is_of_rows(found: Found, opset: int) -> bool:
    conv, axis, place = found.node("conv"), found.number("axis"), found.number("place")
    if computed_in("Conv", conv.outputs[0].dtype) is None or len(found.spec("x").dims or ()) != 3:
        return False
    # Height is the axis of size 1 that the pattern inserts, so it must be the second of four.
    if str(conv.attrs["data_format"]) != "NHWC" or axis not in (1, -3):
        return False
    if [int(each) % 4 for each in found.node("cut").attrs["squeeze_dims"]] != [1]:
        return False
    if "bias" in found.edges and str(found.root.attrs.get("data_format", "NHWC")).startswith("NC"):
        return False
    if "order" not in found.edges:
        return place in (0, -4)
    order = found.constant("order")
    return place in (2, -2) and order is not None and order.tolist() == [2, 3, 1, 0]


@composed(
    "Conv of rows",
    *(form.format(f"(conv := Conv2D(ExpandDims(x, axis), {kernel}))") for form, kernel in product(_FORMS, _KERNELS)),
    where=_is_of_rows,
    any_layout=True,
)
def convolution_of_rows(
    node: ExportedNode,
    x: ModelValue,
    axis: ModelValue,
    w: ModelValue,
    place: ModelValue,
    order: ModelValue | None = None,
    bias: ModelValue | None = None,
) -> ModelValue:
    """Export a convolution of [batch, width, channels], with an optional bias per channel."""
    inner = node.within("conv")
    both = windows_of(inner).window
    layout = Layout.of(1, channels_first=False)
    along = replace(
        both, layout=layout, strides=both.strides[1:], dilations=both.dilations[1:], explicit=both.explicit[1:]
    )
    images, kernel = node.first(x), node.rows(w)
    # [width, in, out] to ONNX's [out, in, width]; an imported filter is in that order already.
    weights = node.transposed(kernel, (2, 1, 0)) if order is None else kernel
    made = convolved(inner, WindowAttributes(along), images, weights, bias, groups_of(inner, images, weights))
    return ModelValue(made.name, made.dtype, node.outputs[0].dims, None, True)
