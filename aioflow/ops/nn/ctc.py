"""Connectionist temporal classification: losses and decoders of sequences that are not aligned with their labels.

Graves et al., "Connectionist Temporal Classification", ICML 2006. A path has one class per time step. Its labels are
the classes without blanks, after runs of one class are merged.
"""

from __future__ import annotations

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, merge_dims
from aioflow.graph.traits import opaque, sparse
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list
from aioflow.ops.array.joining import concat
from aioflow.ops.array.making import sequence_mask
from aioflow.ops.array.selection import boolean_mask, where_v2
from aioflow.ops.control.assertions import assert_less, assert_less_equal, assert_non_negative
from aioflow.ops.core import identity
from aioflow.ops.math.reduction import cumsum
from aioflow.ops.scoping import control_dependencies, name_scope
from aioflow.ops.sparse.tensor import SparseTensor, sparse_of

# ── definitions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _sizes(ctx: ShapeContext) -> tuple[int | None, int | None, int | None]:
    """Return the number of time steps, sequences and classes, of which the lengths know the second, too."""
    inputs = ctx.require_rank("inputs", 3) or (None, None, None)
    lengths = ctx.require_rank("sequence_length", 1) or (None,)
    (batch,) = merge_dims(inputs[1:2], lengths) or (None,)
    return inputs[0], batch, inputs[2]


def _loss_shape(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("labels_indices", 2)
    ctx.require_rank("labels_values", 1)
    steps, batch, classes = _sizes(ctx)
    return [(batch,), (steps, batch, classes)]


def _decoded_shape(ctx: ShapeContext) -> list[Dims]:
    paths = ctx.attrs.get("top_paths", 1)
    parts: list[Dims] = [(None, 2), (None,), (2,)]
    return [each for each in parts for _ in range(paths)] + [(_sizes(ctx)[1], paths)]


define_op(
    "CTCLoss",
    "inputs: T, labels_indices: int64, labels_values: int32, sequence_length: int32",
    "loss: T, gradient: T",
    [
        "preprocess_collapse_repeated: bool = False",
        "ctc_merge_repeated: bool = True",
        "ignore_longer_outputs_than_inputs: bool = False",
        "T: {float32, float64} = float32",
    ],
    shape=_loss_shape,
    traits=opaque(),
)
define_op(
    "CTCGreedyDecoder",
    "inputs: T, sequence_length: int32",
    "decoded_indices: int64, decoded_values: int64, decoded_shape: int64, log_probability: T",
    ["merge_repeated: bool = False", "blank_index: int = -1", "T: {float32, float64} = float32"],
    shape=_decoded_shape,
    traits=sparse(),
)
define_op(
    "CTCBeamSearchDecoder",
    "inputs: T, sequence_length: int32",
    "decoded_indices: top_paths*int64, decoded_values: top_paths*int64, decoded_shape: top_paths*int64, "
    "log_probability: T",
    [
        "beam_width: int >= 1",
        "top_paths: int >= 1",
        "merge_repeated: bool = True",
        "T: {float32, float64} = float32",
    ],
    shape=_decoded_shape,
    traits=sparse(),
)
not_differentiable("CTCGreedyDecoder", "CTCBeamSearchDecoder")


@gradient("CTCLoss")
def _loss_grad(op: Operation, grad: Tensor | None, _: Tensor | None) -> list[Tensor | None]:
    if grad is None:
        return [None] * 4
    # The kernel computes the first derivative beside the loss; there is no op for the second one.
    slopes = make("PreventGradient", op.outputs[1], message="the CTC loss has no second derivative")
    return [make("Reshape", grad, [1, -1, 1]) * slopes, None, None, None]


# ── losses ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def ctc_loss(
    labels: SparseTensor,
    inputs: TensorLike | None = None,
    sequence_length: TensorLike | None = None,
    preprocess_collapse_repeated: bool = False,
    ctc_merge_repeated: bool = True,
    ignore_longer_outputs_than_inputs: bool = False,
    time_major: bool = True,
    logits: TensorLike | None = None,
) -> Tensor:
    """Return the [batch] negative log likelihoods of the labels, over all paths.

    Args:
        labels: int32 SparseTensor [batch, max_labels] of classes below num_classes - 1. The last class is the blank.
        inputs: [max_time, batch, num_classes] float32 or float64 logits.
        sequence_length: [batch] int32 numbers of time steps.
        preprocess_collapse_repeated: Whether to merge repeated labels first.
        ctc_merge_repeated: Whether a run of one class stands for one label; otherwise, each step is a label.
        ignore_longer_outputs_than_inputs: Whether a sequence with more labels than steps has the loss 0.
        time_major: False for logits [batch, max_time, num_classes].
        logits: Another name of `inputs`.

    Returns:
        The losses, in the dtype of the logits: inf if no path has these labels. A sequence may have no labels, which
        TensorFlow refuses.

    Raises:
        InvalidArgumentError: in a step, a label is no class, follows a blank, or there are more labels than steps.
    """
    found = inputs if logits is None else logits
    if found is None or sequence_length is None:
        raise InvalidArgumentError("an argument is missing", expected="logits and sequence_length", actual=None)
    wanted = sparse_of(labels)
    scores = convert_to_tensor(found, name="ctc_loss_inputs")
    loss, _ = make_list(
        "CTCLoss",
        scores if time_major else make("Transpose", scores, [1, 0, 2]),
        wanted.indices,
        wanted.values,
        sequence_length,
        preprocess_collapse_repeated=preprocess_collapse_repeated,
        ctc_merge_repeated=ctc_merge_repeated,
        ignore_longer_outputs_than_inputs=ignore_longer_outputs_than_inputs,
    )
    return loss


def ctc_loss_v2(
    labels: TensorLike | SparseTensor,
    logits: TensorLike,
    label_length: TensorLike | None,
    logit_length: TensorLike,
    logits_time_major: bool = True,
    unique: tuple[TensorLike, TensorLike] | None = None,
    blank_index: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Return the [batch] negative log likelihoods of dense or sparse labels, with any class as the blank.

    Args:
        labels: [batch, max_labels] int32 classes, or a SparseTensor.
        logits: [max_time, batch, num_classes] floats.
        label_length: [batch] numbers of labels; not used for a SparseTensor.
        logit_length: [batch] numbers of time steps.
        logits_time_major: False for logits [batch, max_time, num_classes].
        unique: Not used: what `ctc_unique_labels` returns, which speeds up TensorFlow's implementation.
        blank_index: The class of the blank, counted from the end if negative; 0 by default for dense labels.
        name: Name scope of the nodes.

    Raises:
        InvalidArgumentError: `blank_index` is no class, or None for sparse labels; or `label_length` is missing, or no
            number of labels in a step.
    """
    with name_scope(name, "ctc_loss", [logits, label_length, logit_length]):
        given = convert_to_tensor(logits, name="logits")
        wide = given if given.dtype.name in ("float32", "float64") else make("Cast", given, DstT=dtypes.float32)
        scores = wide if logits_time_major else make("Transpose", wide, [1, 0, 2])
        steps = make("Cast", convert_to_tensor(logit_length), DstT=dtypes.int32)
        if isinstance(labels, SparseTensor):
            if blank_index is None:
                raise InvalidArgumentError("sparse labels need a blank_index", expected="a class", actual=None)
            scores, values = _with_last_blank(scores, labels.values, blank_index)
            sparse_labels = SparseTensor(labels.indices, values, labels.dense_shape)
            return _as(ctc_loss(sparse_labels, scores, steps), given)
        if label_length is None:
            raise InvalidArgumentError("dense labels need their lengths", expected="label_length", actual=None)
        counts = make("Cast", _vector(label_length), DstT=dtypes.int32)
        held = _held(_matrix(labels), counts, _classes(scores))
        scores, values = _with_last_blank(scores, held.values, blank_index or 0)
        held = SparseTensor(held.indices, values, held.dense_shape)
        loss = ctc_loss(held, scores, steps, ignore_longer_outputs_than_inputs=True)
        impossible = make("Greater", counts, steps)
        return _as(where_v2(impossible, constant(np.inf, loss.dtype), loss), given)


def _as(tensor: Tensor, given: Tensor) -> Tensor:
    return tensor if tensor.dtype is given.dtype else make("Cast", tensor, DstT=given.dtype)


def _with_last_blank(scores: Tensor, labels: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    """Move the blank to the end of the classes.

    Raises:
        InvalidArgumentError: the number of classes is known, and blank_index is not one of them.
            Otherwise the step fails.
    """
    labels = make("Cast", labels, DstT=dtypes.int32)
    classes = _classes(scores)
    known = None if scores.dims is None else scores.dims[2]
    if known is not None and not -known <= blank < known:
        raise InvalidArgumentError("blank_index is no class", expected=f"{-known} to {known - 1}", actual=blank)
    if blank == -1 or (known is not None and blank % known == known - 1):
        return scores, labels
    at = classes + blank if blank < 0 else constant(blank)
    message = "blank_index is no class"
    with control_dependencies([assert_non_negative(at, message=message), assert_less(at, classes, message=message)]):
        parts = make("Pack", [at, 1, classes - at - 1])
    before, of_blank, after = make_list("SplitV", scores, parts, 2, num_split=3)
    return concat([before, after, of_blank], 2), where_v2(make("Less", labels, at), labels, labels - 1)


def _matrix(labels: TensorLike) -> Tensor:
    """Return the labels as a tensor of rank 2."""
    made = identity(convert_to_tensor(labels, name="labels"))
    made.set_shape([None, None])
    return made


def _vector(lengths: TensorLike) -> Tensor:
    """Return the lengths as a tensor of rank 1."""
    made = identity(convert_to_tensor(lengths, name="seq_length"))
    made.set_shape([None])
    return made


def _classes(scores: Tensor) -> Tensor:
    return make("GatherV2", make("Shape", scores), 2, 0)


def _held(labels: Tensor, counts: Tensor, classes: Tensor) -> SparseTensor:
    """Return the first `counts` labels of each row. The step fails if they do not exist or are no classes."""
    shape = make("Shape", labels)
    width = make("GatherV2", shape, 1, 0)
    message = "label_length is not a number of labels"
    fits = assert_non_negative(counts, message=message), assert_less_equal(counts, width, message=message)
    with control_dependencies(fits):
        mask = sequence_mask(identity(counts), width)
    values = boolean_mask(labels, mask)
    message = "a label is no class"
    known = assert_non_negative(values, message=message), assert_less(values, _as(classes, values), message=message)
    with control_dependencies(known):
        return SparseTensor(make("Where", mask), identity(values), make("Cast", shape, DstT=dtypes.int64))


# ── decoders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def ctc_greedy_decoder(
    inputs: TensorLike, sequence_length: TensorLike, merge_repeated: bool = True, blank_index: int | None = None
) -> tuple[list[SparseTensor], Tensor]:
    """Return the labels of the path that has the best class at each step.

    Args:
        inputs: [max_time, batch, num_classes] float32 or float64 logits.
        sequence_length: [batch] int32 numbers of time steps.
        merge_repeated: Whether a run of one class stands for one label.
        blank_index: The class of the blank, counted from the end if negative; the last one by default.

    Returns:
        A list of one int64 SparseTensor [batch, max_labels], and the [batch, 1] negative sums of the logits on the
        path.
    """
    blank = -1 if blank_index is None else blank_index
    indices, values, shape, score = make_list(
        "CTCGreedyDecoder", inputs, sequence_length, merge_repeated=merge_repeated, blank_index=blank
    )
    return [SparseTensor(indices, values, shape)], score


def ctc_beam_search_decoder(
    inputs: TensorLike,
    sequence_length: TensorLike,
    beam_width: int = 100,
    top_paths: int = 1,
    merge_repeated: bool = True,
) -> tuple[list[SparseTensor], Tensor]:
    """Return the most likely labels, found by a search that keeps the best prefixes at each step.

    Args:
        inputs: [max_time, batch, num_classes] float32 or float64 logits; the last class is the blank.
        sequence_length: [batch] int32 numbers of time steps.
        beam_width: Number of prefixes to keep.
        top_paths: Number of results, at most `beam_width`.
        merge_repeated: Whether to merge equal neighbors in the results ("ABB" becomes "AB"), even those that a blank
            separated.

    Returns:
        A list of `top_paths` int64 SparseTensors [batch, max_labels], the best first, and their [batch, top_paths] log
        probabilities.

    Raises:
        InvalidArgumentError: `top_paths` is larger than `beam_width`; or in a step, there are fewer results.
    """
    if top_paths > beam_width:
        raise InvalidArgumentError(
            "top_paths is too large", expected=f"up to beam_width={beam_width}", actual=top_paths
        )
    *parts, score = make_list(
        "CTCBeamSearchDecoder",
        inputs,
        sequence_length,
        beam_width=beam_width,
        top_paths=top_paths,
        merge_repeated=merge_repeated,
    )
    indices, values, shapes = (parts[n * top_paths : (n + 1) * top_paths] for n in range(3))
    return [SparseTensor(*path) for path in zip(indices, values, shapes, strict=True)], score


def ctc_beam_search_decoder_v2(
    inputs: TensorLike, sequence_length: TensorLike, beam_width: int = 100, top_paths: int = 1
) -> tuple[list[SparseTensor], Tensor]:
    """Return the most likely labels, without merging equal neighbors: see `ctc_beam_search_decoder`."""
    return ctc_beam_search_decoder(inputs, sequence_length, beam_width, top_paths, merge_repeated=False)


# ── labels ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def collapse_repeated(labels: TensorLike, seq_length: TensorLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Return the [batch, max_labels] labels with runs of one label merged and zeros at the end, and the new lengths.

    Args:
        labels: [batch, max_length].
        seq_length: [batch] lengths, whose dtype the new ones have.
        name: Name scope of the nodes.
    """
    with name_scope(name, "collapse_repeated_labels", [labels, seq_length]):
        values, lengths = _matrix(labels), _vector(seq_length)
        shape = make("Shape", values)
        changes = make("NotEqual", values[:, 1:], values[:, :-1])
        first = make("OnesLike", make("Cast", values[:, :1], DstT=dtypes.bool_))
        inside = sequence_mask(lengths, make("GatherV2", shape, 1, 0))
        kept = make("LogicalAnd", concat([first, changes], 1), inside)
        counts = make("Sum", make("Cast", kept, DstT=dtypes.int32), 1)
        width = make("Max", concat([counts, [0]], 0), 0)
        merged = make("ScatterNd", _places(kept), boolean_mask(values, kept), make("Pack", [shape[0], width]))
        return merged, make("Cast", counts, DstT=lengths.dtype)


def _places(kept: Tensor) -> Tensor:
    """Return the row and the new column of each element that is kept."""
    columns = cumsum(make("Cast", kept, DstT=dtypes.int32), 1, exclusive=True)
    rows = make("Cast", make("Where", kept), DstT=dtypes.int32)
    return make("Pack", [rows[:, 0], boolean_mask(columns, kept)], axis=1)


def ctc_unique_labels(labels: TensorLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Return the different labels of each row in the order of their first position, and the index of each label.

    Args:
        labels: [batch, max_length] integers, padded with 0.
        name: Name scope of the nodes.

    Returns:
        Two [batch, max_length] tensors: the int64 labels, with zeros at the end, and int32 indices of these.
    """
    with name_scope(name, "ctc_unique_labels", [labels]):
        values = make("Cast", _matrix(labels), DstT=dtypes.int64)
        equal = make("Equal", make("ExpandDims", values, 2), make("ExpandDims", values, 1))
        shape = make("Shape", values)
        positions = make("Range", 0, shape[1], 1)
        # The least position of an equal label; not ArgMax, which refuses rows of size 0.
        first = make("Min", where_v2(equal, positions, shape[1]), 2)
        own = make("Equal", first, positions)
        unique = make("ScatterNd", _places(own), boolean_mask(values, own), shape)
        ranks = cumsum(make("Cast", own, DstT=dtypes.int32), 1, exclusive=True)
        return unique, make("GatherV2", ranks, first, 1, batch_dims=1)
