"""Types for annotations: op arguments, shapes, dtypes, formats of images and fetches."""

from aioflow.graph.dtypes import DTypeLike
from aioflow.graph.fetchable import Fetchable
from aioflow.graph.operators import SupportsArray
from aioflow.graph.shapes import ShapeLike
from aioflow.graph.tensor_like import IndexLike, NodeLike, SupportsTensor, TensorLike
from aioflow.loading.later import load_later as _load_later
from aioflow.ops.nn.geometry import ImageFormat, PaddingLike, VolumeFormat

__all__ = [
    "DTypeLike",
    "Fetchable",
    "ImageFormat",
    "IndexLike",
    "NodeLike",
    "PaddingLike",
    "ShapeLike",
    "SupportsArray",
    "SupportsTensor",
    "TensorLike",
    "VolumeFormat",
]

_load_later(__name__)
