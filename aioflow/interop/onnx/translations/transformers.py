"""com.microsoft: layers of transformers other than attention, namely embeddings and normalized sums."""

from __future__ import annotations

from typing import Final

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.sizes import shape_of, size_of
from aioflow.interop.onnx.translating import OnnxNode, microsoft
from aioflow.interop.onnx.translations.normalization import normal_of_rows
from aioflow.ops.apply import constant, make

_EPSILON: Final = 1e-12


@microsoft("SkipLayerNormalization", "epsilon")
def skip_layer_normalization(
    node: OnnxNode, x: Tensor, skip: Tensor, scale: Tensor, shift: Tensor | None = None, bias: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    return _of_sum(node, (x, skip, bias), scale, shift, True)


@microsoft("SkipSimplifiedLayerNormalization", "epsilon")
def skip_simplified_layer_normalization(
    node: OnnxNode, x: Tensor, skip: Tensor, scale: Tensor, bias: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    return _of_sum(node, (x, skip, bias), scale, None, False)


def _of_sum(
    node: OnnxNode, parts: tuple[Tensor, Tensor, Tensor | None], scale: Tensor, shift: Tensor | None, centered: bool
) -> tuple[Tensor | None, ...]:
    """Return the normalized sum, and the sum itself as the fourth output."""
    if node.wants(1) or node.wants(2):
        node.refuse("the outputs of mean and deviation, which onnxruntime has for training")
    x, skip, bias = parts
    total = make("AddV2", x, skip)
    if bias is not None:
        total = make("AddV2", total, bias)
    y = normal_of_rows(total, scale, shift, node.attr("epsilon", _EPSILON), centered)
    # None stands for the outputs of mean and deviation, which no node reads.
    return y, None, None, total


@microsoft("EmbedLayerNormalization", "epsilon", "mask_index_type")
def embed_layer_normalization(
    node: OnnxNode,
    words: Tensor,
    segments: Tensor | None,
    of_words: Tensor,
    of_positions: Tensor,
    of_segments: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    mask: Tensor | None = None,
    positions: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalized sum of the embeddings, the number of ones in each row of the mask, and the sum."""
    if positions is None:
        positions = make("Range", 0, size_of(words, 1), 1)
    total = make("AddV2", make("GatherV2", of_words, words, 0), make("GatherV2", of_positions, positions, 0))
    if segments is not None and of_segments is not None:
        total = make("AddV2", total, make("GatherV2", of_segments, segments, 0))
    elif segments is not None or of_segments is not None:
        raise node.wrong("the inputs", "segments and their embedding, or neither", "one of them")
    if mask is None:
        count = make("Fill", shape_of([size_of(words, 0)]), constant(np.int32(0)))
    else:
        count = make("Sum", make("Cast", make("Equal", mask, 1), DstT=dtypes.int32), 1)
    return normal_of_rows(total, scale, shift, node.attr("epsilon", _EPSILON)), count, total
