"""ai.onnx.ml: rows of numbers as dictionaries, as in the outputs of scikit-learn's classifiers."""

from __future__ import annotations

from aioflow.graph.graph import Tensor
from aioflow.graph.labelled import LabelledTensor
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops import public as ops


@translation("ZipMap", domain="ai.onnx.ml")
def zip_map(node: OnnxNode, x: Tensor) -> LabelledTensor:
    """Label the columns. A vector is one row, as in onnxruntime."""
    if node.weight is None:
        return node.refuse("a list of dictionaries inside of a branch, a loop or a function")
    texts, numbers = node.attr("classlabels_strings"), node.attr("classlabels_int64s")
    if bool(texts) == bool(numbers):
        raise node.wrong("the labels", "classlabels_strings or classlabels_int64s", "both" if texts else "neither")
    labels = texts or numbers
    if x.dims is None:
        x = ops.reshape(x, ops.concat([[-1], ops.shape(x)[-1:]], 0))
    elif len(x.dims) == 1:
        x = ops.expand_dims(x, 0)
    if x.dims is not None and (len(x.dims) != 2 or x.dims[1] not in (None, len(labels))):
        raise node.wrong("the number of labels", f"{len(labels)} columns", f"shape {x.shape}")
    return LabelledTensor(ops.ensure_shape(x, [None, len(labels)]), labels)
