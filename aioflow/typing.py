"""Types for annotations: op arguments, shapes, dtypes and fetches."""

from aioflow.graph.dtypes import DTypeLike
from aioflow.graph.fetchable import Fetchable
from aioflow.graph.operators import SupportsArray
from aioflow.graph.shapes import ShapeLike
from aioflow.graph.tensor_like import IndexLike, NodeLike, SupportsTensor, TensorLike
from aioflow.loading.later import load_later as _load_later

__all__ = [
    "DTypeLike",
    "Fetchable",
    "IndexLike",
    "NodeLike",
    "ShapeLike",
    "SupportsArray",
    "SupportsTensor",
    "TensorLike",
]

_load_later(__name__)
