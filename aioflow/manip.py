"""`aioflow.manip`: functions that move elements, under TensorFlow 1's names."""

from aioflow.loading.later import load_later as _load_later
from aioflow.ops.array.indexing import gather_nd as gather_nd
from aioflow.ops.array.indexing import scatter_nd as scatter_nd
from aioflow.ops.array.joining import tile as tile
from aioflow.ops.array.order import reverse as reverse
from aioflow.ops.array.order import roll as roll
from aioflow.ops.array.padding import batch_to_space_nd as batch_to_space_nd
from aioflow.ops.array.padding import space_to_batch_nd as space_to_batch_nd
from aioflow.ops.array.shape import reshape as reshape

__all__ = [
    "batch_to_space_nd",
    "gather_nd",
    "reshape",
    "reverse",
    "roll",
    "scatter_nd",
    "space_to_batch_nd",
    "tile",
]

_load_later(__name__)
