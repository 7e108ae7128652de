"""com.microsoft: rotary position embeddings."""

from __future__ import annotations

from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.microsoft import microsoft, refuse_unless
from aioflow.interop.onnx.sizes import rank_of
from aioflow.interop.onnx.translating import Node
from aioflow.interop.onnx.translations.attention import flattened, heads
from aioflow.interop.onnx.translations.dimensions import int32, shape_of, size_of
from aioflow.ops.apply import make, make_list


@microsoft("RotaryEmbedding", "interleaved", "is_packed_batching", "num_heads", "rotary_embedding_dim", "scale")
def rotary_embedding(node: Node, x: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Translate RotaryEmbedding.

    The positions are a single number for the first step, or one for each step of each sequence.
    """
    refuse_unless(node, is_packed_batching=0, scale=1.0)
    rank = rank_of(node, x)
    if rank == 3:
        count = node.attr("num_heads", 0)  # 0 means that whole heads are rotated
        x = heads(x, count) if count else heads(x, size=2 * _pairs(node, cosines))
    elif rank != 4:
        raise node.wrong("the input", "rank 3 or 4", rank)
    if rank_of(node, positions) == 1:
        positions = make("AddV2", make("Reshape", int32(positions), []), make("Range", 0, size_of(x, 2), 1))
    y = rotated(node, x, positions, (cosines, sines), bool(node.attr("interleaved", 0)))
    return flattened(y) if rank == 3 else y


def _pairs(node: Node, cosines: Tensor) -> int:
    pairs = size_of(cosines, 1)
    return pairs if isinstance(pairs, int) else node.refuse("tables of an unknown number of columns")


def rotated(node: Node, x: Tensor, positions: Tensor, tables: tuple[Tensor, Tensor], interleaved: bool) -> Tensor:
    """Rotate pairs of elements of [batch, heads, steps, size] by angles that depend on their positions.

    Args:
        node: Node being translated.
        x: The elements.
        positions: One for each step, [steps], or for each step of each sequence, [batch, steps].
        tables: Cosines and sines, a row for each position and a column for each pair.
        interleaved: Whether pairs are neighbors; otherwise they join the first and the second half.
    """
    half = _pairs(node, tables[0])
    cosine, sine = (make("GatherV2", table, positions, 0) for table in tables)
    if rank_of(node, positions) == 2:
        cosine, sine = make("ExpandDims", cosine, 1), make("ExpandDims", sine, 1)
    turning, rest = _cut(x, 2 * half)
    if interleaved:
        shape = [size_of(x, axis) for axis in range(3)]
        a, b = make_list("Unpack", make("Reshape", turning, shape_of([*shape, half, 2])), num=2, axis=4)
        pair = [a * cosine - b * sine, b * cosine + a * sine]
        y = make("Reshape", make("Pack", pair, axis=4), shape_of([*shape, 2 * half]))
        return make("ConcatV2", [y, *rest], 3) if rest else y
    a, b = make_list("Split", 3, turning, num_split=2)
    return make("ConcatV2", [a * cosine - b * sine, b * cosine + a * sine, *rest], 3)


def _cut(x: Tensor, size: int) -> tuple[Tensor, list[Tensor]]:
    """Return the first `size` elements of the last of four axes, and the others, if there may be any."""
    if size_of(x, 3) == size:
        return x, []
    edge = [0, 0, 0, size]
    first = make("StridedSlice", x, [0] * 4, edge, [1] * 4, begin_mask=15, end_mask=7)
    return first, [make("StridedSlice", x, edge, [0] * 4, [1] * 4, begin_mask=7, end_mask=15)]
