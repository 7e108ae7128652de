"""ai.onnx.ml: feature extraction, linear models, and rows of numbers as dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.graph.labelled import LabelledTensor
from aioflow.interop.onnx.sizes import rank_of
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.interop.onnx.translations.lookup import LookupKey, index_in, mapped
from aioflow.memory.values import Array
from aioflow.ops import public as ops
from aioflow.ops.apply import constant, make
from aioflow.ops.array.making import one_hot
from aioflow.ops.math.reduction import reduce_max, reduce_sum

_ML: Final = "ai.onnx.ml"


def _bytes(texts: list[str]) -> list[bytes]:
    return [text.encode() for text in texts]


def _strings(texts: list[str]) -> Array:
    return np.array(_bytes(texts), object)


def to_float(x: Tensor) -> Tensor:
    """Return the tensor as float32, unless it is float64."""
    return x if x.dtype in (dtypes.float32, dtypes.float64) else make("Cast", x, DstT=dtypes.float32)


# ── mapped values ─────────────────────────────────────────────────────────────────────────────────────────────────────


@translation("LabelEncoder", domain=_ML)
def label_encoder_of_classes(node: OnnxNode, x: Tensor) -> Tensor:
    """Map strings to their indices in a list, or indices to the strings."""
    classes = node.required("classes_strings")
    return _either_way(node, x, list(range(len(classes))), classes)


@translation("CategoryMapper", domain=_ML)
def category_mapper(node: OnnxNode, x: Tensor) -> Tensor:
    return _either_way(node, x, node.required("cats_int64s"), node.required("cats_strings"))


def _either_way(node: OnnxNode, x: Tensor, numbers: list[int], texts: list[str]) -> Tensor:
    if x.dtype is dtypes.string:
        return mapped(_bytes(texts), np.array(numbers, np.int64), node.attr("default_int64", -1), x)
    return mapped(numbers, _strings(texts), node.attr("default_string", "_Unused").encode(), x)


@translation("LabelEncoder", since=2, domain=_ML)
def label_encoder(node: OnnxNode, x: Tensor) -> Tensor:
    values, default = _values(node)
    return mapped(_keys(node), values, default, x)


def _keys(node: OnnxNode) -> Sequence[LookupKey]:
    for kind in ("int64s", "floats"):
        if node.attr(f"keys_{kind}") is not None:
            return list(node.attr(f"keys_{kind}"))
    if node.attr("keys_strings") is not None:
        return _bytes(node.attr("keys_strings"))
    found: list[LookupKey] = node.required("keys_tensor").reshape(-1).tolist()
    return found


def _values(node: OnnxNode) -> tuple[Array, Any]:
    """Return the values, and the default value of their type."""
    given = node.attr("default_tensor")
    default = None if given is None else given.reshape(-1)[0]
    if node.attr("values_strings") is not None:
        fallback = node.attr("default_string", "_Unused").encode()
        return _strings(node.attr("values_strings")), default or fallback
    for kind, dtype, name, fallback in (
        ("int64s", np.int64, "default_int64", -1),
        # The standard's default is negative zero.
        ("floats", np.float32, "default_float", -0.0),
    ):
        if node.attr(f"values_{kind}") is not None:
            return np.array(node.attr(f"values_{kind}"), dtype), node.attr(name, fallback)
    values = node.required("values_tensor").reshape(-1)
    # The standard's defaults for a tensor of strings, integers or floats.
    kinds = {"O": b"_Unused", "i": -1, "f": -0.0}
    return values, kinds.get(values.dtype.kind, 0) if default is None else default


@translation("OneHotEncoder", domain=_ML)
def one_hot_encoder(node: OnnxNode, x: Tensor) -> Tensor:
    texts = node.attr("cats_strings")
    keys: Sequence[LookupKey] = _bytes(texts) if texts else node.required("cats_int64s")
    if not node.attr("zeros", 1):
        return node.refuse("zeros=0: a category that is not there is an error")
    whole = x if texts or x.dtype is dtypes.int64 else make("Cast", x, DstT=dtypes.int64)
    # `index_in` gives -1 for an unknown category, for which `one_hot` sets no element.
    return one_hot(index_in(keys, whole), len(keys), dtype=dtypes.float32)


@translation("Binarizer", domain=_ML)
def binarizer(node: OnnxNode, x: Tensor) -> Tensor:
    return make("Cast", make("Greater", to_float(x), node.attr("threshold", 0.0)), DstT=x.dtype)


@translation("Imputer", domain=_ML)
def imputer(node: OnnxNode, x: Tensor) -> Tensor:
    whole = x.dtype.is_integer
    new = np.array(node.required("imputed_value_int64s" if whole else "imputed_value_floats"), x.dtype.np_dtype)
    old = node.attr("replaced_value_int64", 0) if whole else node.attr("replaced_value_float", 0.0)
    # Only NaN differs from itself, and no element equals it.
    missing = make("IsNan", x) if old != old else make("Equal", x, old)
    return make("SelectV2", missing, constant(new), x)


# ── columns ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@translation("ArrayFeatureExtractor", domain=_ML)
def array_feature_extractor(node: OnnxNode, x: Tensor, indices: Tensor) -> Tensor:
    rows = make("ExpandDims", x, 0) if rank_of(node, x) == 1 else x
    return make("GatherV2", rows, make("Reshape", indices, [-1]), -1)


@translation("FeatureVectorizer", domain=_ML)
def feature_vectorizer(node: OnnxNode, *inputs: Tensor) -> Tensor:
    widths = node.required("inputdimensions")
    columns = []
    for x, width in zip(inputs, widths, strict=True):
        rows = make("Reshape", x, [1, -1]) if rank_of(node, x) == 1 else x
        columns.append(make("Slice", make("Cast", rows, DstT=dtypes.float32), [0, 0], [-1, width]))
    return make("ConcatV2", columns, 1) if len(columns) > 1 else columns[0]


@translation("Scaler", domain=_ML)
def scaler(node: OnnxNode, x: Tensor) -> Tensor:
    offset, scale = (np.array(node.required(name), np.float32) for name in ("offset", "scale"))
    return (make("Cast", x, DstT=dtypes.float32) - constant(offset)) * constant(scale)


@translation("Normalizer", domain=_ML)
def normalizer(node: OnnxNode, x: Tensor) -> Tensor:
    """Divide rows by their maximum, L1 norm or L2 norm. Rows for which it is 0 stay unchanged."""
    values = make("Cast", x, DstT=dtypes.float32)
    norm = node.attr("norm", "MAX")
    if norm == "MAX":
        size = reduce_max(values, -1, True)
    elif norm == "L1":
        size = reduce_sum(make("Abs", values), -1, True)
    elif norm == "L2":
        # √(Σ x²).
        size = make("Sqrt", reduce_sum(make("Square", values), -1, True))
    else:
        return node.refuse(f"norm={norm}")
    return values / make("SelectV2", make("Equal", size, 0), 1, size)


# ── linear models ─────────────────────────────────────────────────────────────────────────────────────────────────────


def transformed(node: OnnxNode, scores: Tensor, kind: str) -> Tensor:
    """Apply the `post_transform` of that name to scores of classes or targets."""
    if kind == "NONE":
        return scores
    if kind in ("SOFTMAX", "LOGISTIC"):
        return make({"SOFTMAX": "Softmax", "LOGISTIC": "Sigmoid"}[kind], scores)
    if kind == "PROBIT":
        return make("Ndtri", scores)
    if kind == "SOFTMAX_ZERO":  # scores of 0 stay 0
        there = make("NotEqual", scores, 0)
        # The lowest number instead of 0, so that its share rounds to 0.
        share = make("Softmax", make("SelectV2", there, scores, scores.dtype.min))
        return make("SelectV2", there, share, 0)
    return node.refuse(f"post_transform={kind}")


def class_labels(node: OnnxNode, *names: str) -> Array:
    """Return the labels of the classes: strings or integers."""
    for name in names:
        found = node.attr(name)
        if found:
            return _strings(found) if isinstance(found[0], str) else np.array(found, np.int64)
    return node.refuse("no labels of classes")


def labels_of(scores: Tensor, labels: Array) -> Tensor:
    """Return the label with the highest score in each row."""
    return make("GatherV2", constant(labels), make("ArgMax", scores, -1), 0)


def _linear(node: OnnxNode, x: Tensor, count: int) -> Tensor:
    values = make("Cast", x, DstT=dtypes.float32)
    weights = np.array(node.required("coefficients"), np.float32).reshape(count, -1)
    is_matrix = x.dims is not None and len(x.dims) > 1
    rows = values if is_matrix else make("Reshape", values, [-1, weights.shape[1]])
    products = make("MatMul", rows, constant(weights), transpose_b=True)
    intercepts = node.attr("intercepts")
    return products + constant(np.array(intercepts, np.float32)) if intercepts else products


@translation("LinearRegressor", domain=_ML)
def linear_regressor(node: OnnxNode, x: Tensor) -> Tensor:
    return transformed(node, _linear(node, x, node.attr("targets", 1)), node.attr("post_transform", "NONE"))


@translation("LinearClassifier", domain=_ML)
def linear_classifier(node: OnnxNode, x: Tensor) -> tuple[Tensor, Tensor]:
    labels = class_labels(node, "classlabels_strings", "classlabels_ints")
    if len(node.attr("intercepts") or labels) != len(labels):
        return node.refuse("one score for two classes")
    scores = _linear(node, x, len(labels))
    # The label follows from the scores before the transform, as in the other classifiers here.
    return labels_of(scores, labels), transformed(node, scores, node.attr("post_transform", "NONE"))


# ── rows of numbers as dictionaries, as in the outputs of scikit-learn's classifiers ──────────────────────────────────


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
