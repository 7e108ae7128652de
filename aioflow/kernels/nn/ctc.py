"""Kernels of connectionist temporal classification.

In the loss, a sequence of labels is extended by a blank before, between and after them. `alpha[t, b, u]` is the log
probability of all paths up to step t that end at position u of the extended labels, and `beta[t, b, u]` that of all
paths after step t that continue there (Graves et al., 2006, section 4.1).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from aioflow.concurrency.stopping import batches
from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import claim_array
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.kernels.sparse.entries import int64_array
from aioflow.memory.values import Array, Namespace

_NEVER: Final = -np.inf  # the log probability of an impossible path


def _check(inputs: Array, lengths: Array) -> tuple[int, int, int]:
    if inputs.ndim != 3 or lengths.shape != inputs.shape[1:2] or not inputs.shape[2]:
        raise InvalidArgumentError(
            "the logits do not fit the lengths",
            expected="[max_time, batch, num_classes] and [batch]",
            actual=(inputs.shape, lengths.shape),
        )
    steps, batch, classes = inputs.shape
    if batch and not (lengths.min() >= 0 and lengths.max() <= steps):
        raise InvalidArgumentError("a sequence length is out of range", expected=f"0 to {steps}", actual=lengths)
    return steps, batch, classes


# ── loss ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Extended(NamedTuple):
    """Labels with blanks, for all sequences of a batch: host arrays [batch, 2 * max_labels + 1].

    Attributes:
        classes: The class at each position.
        exists: Whether the sequence has the position.
        stays: Whether a path may stay at the position.
        skips: Whether a path may come from two positions before.
        last: [batch] the last position.
        ignored: [batch] whether the sequence has more labels than steps.
    """

    classes: Array
    exists: Array
    stays: Array
    skips: Array
    last: Array
    ignored: Array


def _extended(indices: Array, values: Array, lengths: Array, classes: int, binding: Binding) -> _Extended:
    batch, blank = len(lengths), classes - 1
    merged = binding.attrs["ctc_merge_repeated"]
    rows = [_labels(row, blank, binding.attrs["preprocess_collapse_repeated"]) for row in _rows(indices, values, batch)]
    longer = np.array([given > length for (given, _), length in zip(rows, lengths, strict=True)], bool)
    if longer.any() and not binding.attrs["ignore_longer_outputs_than_inputs"]:
        first = int(longer.argmax())
        raise InvalidArgumentError(
            f"sequence {first} has more labels than time steps",
            expected=f"at most {lengths[first]} labels, or ignore_longer_outputs_than_inputs=True",
            actual=rows[first][0],
        )
    last = np.array([2 * len(labels) for _, labels in rows], np.int64)
    width = int(last.max(initial=0)) + 1
    found = np.full((batch, width), blank, np.int64)
    for row, (_, labels) in zip(found, rows, strict=True):
        row[1 : 2 * len(labels) : 2] = labels
    exists = np.arange(width) <= last[:, None]
    is_label = found != blank
    skips = is_label.copy()
    skips[:, :2] = False
    if merged:
        skips[:, 2:] &= found[:, 2:] != found[:, :-2]
    stays = np.ones_like(is_label) if merged else ~is_label
    return _Extended(found, exists, stays, skips, last, longer)


def _rows(indices: Array, values: Array, batch: int) -> Iterator[Array]:
    """Yield the labels of each sequence."""
    places = int64_array(indices)
    if places.ndim != 2 or places.shape[1] != 2 or values.shape != places.shape[:1]:
        raise InvalidArgumentError(
            "the labels are not the entries of a matrix",
            expected="[n, 2] and [n]",
            actual=(indices.shape, values.shape),
        )
    if len(places) and not (places[:, 0].min() >= 0 and places[:, 0].max() < batch):
        raise InvalidArgumentError(
            "a label belongs to no sequence", expected=f"rows below {batch}", actual=places[:, 0]
        )
    if (np.lexsort((places[:, 1], places[:, 0])) != np.arange(len(places))).any():
        raise InvalidArgumentError(
            "the labels are not in row-major order", expected="see sparse_reorder", actual=places
        )
    bounds = np.searchsorted(places[:, 0], np.arange(batch + 1))
    for begin, end in itertools.pairwise(bounds):
        yield values[begin:end]


def _labels(row: Array, blank: int, collapse: bool) -> tuple[int, Array]:
    """Return the number of labels as given, and the labels up to the first blank."""
    found = row[np.append(True, row[1:] != row[:-1])] if collapse and len(row) else row
    ended = found >= blank
    count = int(ended.argmax()) if ended.any() else len(found)
    if not ended[count:].all():
        raise InvalidArgumentError("a label follows a blank", expected=f"labels below {blank}", actual=row)
    if count and found[:count].min() < 0:
        raise InvalidArgumentError("a label is negative", expected=f"0 to {blank - 1}", actual=row)
    return len(row), found[:count]


@binder(
    "CTCLoss",
    fresh=True,
    elastic=True,
    host=dict.fromkeys(("labels_indices", "labels_values", "sequence_length"), np.asarray),
)
def ctc_loss(binding: Binding) -> Callable[..., tuple[Array, Array]]:
    xp, dtype = binding.xp, binding.output_dtypes[0].np_dtype

    def body(inputs: Array, indices: Array, values: Array, lengths: Array) -> tuple[Array, Array]:
        steps, batch, classes = _check(inputs, lengths)
        host = _extended(indices, values, lengths, classes, binding)
        # Sums over many paths: in float32, a tenth of the digits would be lost over a thousand steps.
        scores = _log_softmax(xp, inputs.astype(np.float64))
        rates = xp.exp(scores)
        if not steps or not batch:
            return xp.zeros(batch, dtype), xp.zeros(inputs.shape, dtype)
        for _ in range(4):  # the scores at all positions, alpha, beta, and the shares
            claim_array((steps, *host.classes.shape), np.dtype(np.float64), nanoseconds=20)
        extended = _Extended(*(xp.asarray(each) for each in host))
        at = xp.take_along_axis(scores, extended.classes[None], axis=2)
        at[:, ~extended.exists] = _NEVER
        alpha = _forward(xp, at, extended)
        beta = _backward(xp, at, extended, lengths)
        ends = xp.asarray(np.maximum(lengths - 1, 0)), xp.arange(batch)
        likelihood = alpha[(*ends, extended.last)]
        before = xp.maximum(extended.last - 1, 0)
        likelihood = xp.where(extended.last > 0, xp.logaddexp(likelihood, alpha[(*ends, before)]), likelihood)
        runs = xp.asarray(lengths > 0) & ~extended.ignored
        possible = likelihood > _NEVER
        share = xp.exp(alpha + beta - xp.where(possible, likelihood, 0)[:, None])
        share[:, ~possible] = 0
        # The derivative of the loss by a logit: the softmax, less the share of the paths that take the class here.
        places = (xp.arange(steps)[:, None, None] * batch + xp.arange(batch)[:, None]) * classes + extended.classes
        taken = xp.bincount(places.ravel(), share.ravel(), steps * batch * classes).reshape(inputs.shape)
        inside = (xp.arange(steps)[:, None] < xp.asarray(lengths)) & runs
        slopes = xp.where(inside[:, :, None], rates - taken, 0)
        return xp.where(runs, -likelihood, 0).astype(dtype), slopes.astype(dtype)

    return body


def _log_softmax(xp: Namespace, scores: Array) -> Array:
    scores -= scores.max(axis=-1, keepdims=True)
    scores -= xp.log(xp.exp(scores).sum(axis=-1, keepdims=True))
    return scores


def _forward(xp: Namespace, at: Array, extended: _Extended) -> Array:
    alpha = xp.full(at.shape, _NEVER)
    alpha[0, :, :2] = at[0, :, :2]
    for t in batches(range(1, len(at)), 64):
        before = alpha[t - 1]
        now = xp.where(extended.stays, before, _NEVER)
        now[:, 1:] = xp.logaddexp(now[:, 1:], before[:, :-1])
        now[:, 2:] = xp.logaddexp(now[:, 2:], xp.where(extended.skips[:, 2:], before[:, :-2], _NEVER))
        alpha[t] = now + at[t]
    return alpha


def _backward(xp: Namespace, at: Array, extended: _Extended, lengths: Array) -> Array:
    beta = xp.full(at.shape, _NEVER)
    positions = xp.arange(at.shape[2])
    is_end = (positions <= extended.last[:, None]) & (positions >= extended.last[:, None] - 1)
    start = xp.where(is_end, 0.0, _NEVER)
    ends = xp.asarray(lengths - 1)[:, None]
    for t in batches(range(len(at) - 1, -1, -1), 64):
        now = xp.full(at.shape[1:], _NEVER)
        if t + 1 < len(at):
            after = beta[t + 1] + at[t + 1]
            now = xp.where(extended.stays, after, _NEVER)
            now[:, :-1] = xp.logaddexp(now[:, :-1], after[:, 1:])
            now[:, :-2] = xp.logaddexp(now[:, :-2], xp.where(extended.skips[:, 2:], after[:, 2:], _NEVER))
        beta[t] = xp.where(ends == t, start, now)
    return beta


# ── decoders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@kernel("CTCGreedyDecoder", device="CPU", fresh=True)
def ctc_greedy_decoder(
    inputs: Array, lengths: Array, *, merge_repeated: bool, blank_index: int
) -> tuple[Array, Array, Array, Array]:
    steps, batch, classes = _check(inputs, lengths)
    blank = blank_index + classes if blank_index < 0 else blank_index
    if not 0 <= blank < classes:
        raise InvalidArgumentError(
            "blank_index is no class", expected=f"{-classes} to {classes - 1}", actual=blank_index
        )
    inside = np.arange(steps)[:, None] < lengths
    best = inputs.argmax(axis=2)
    score = -np.where(inside, np.take_along_axis(inputs, best[:, :, None], 2)[:, :, 0], 0).sum(axis=0)
    kept = inside & (best != blank)
    if merge_repeated:
        kept[1:] &= best[1:] != best[:-1]
    paths = [best[kept[:, row], row] for row in range(batch)]
    return (*_entries(paths), score.astype(inputs.dtype)[:, None])


@kernel("CTCBeamSearchDecoder", device="CPU", fresh=True)
def ctc_beam_search_decoder(
    inputs: Array, lengths: Array, *, beam_width: int, top_paths: int, merge_repeated: bool
) -> tuple[Array, ...]:
    _, batch, _ = _check(inputs, lengths)
    scores = np.full((batch, top_paths), _NEVER)
    paths: list[list[Array]] = [[] for _ in range(top_paths)]
    for row in range(batch):
        logits = _log_softmax(np, inputs[: lengths[row], row].astype(np.float64))
        if np.isnan(logits).any():
            raise InvalidArgumentError(f"the logits of sequence {row} are not all finite", expected="no NaN or +inf")
        found = _search(logits, beam_width)
        if len(found) < top_paths:
            raise InvalidArgumentError(
                f"the search found too few results for sequence {row}",
                expected=f"{top_paths} or more",
                actual=len(found),
            )
        for number, (labels, score) in enumerate(found[:top_paths]):
            scores[row, number] = score
            repeated = np.append(False, labels[1:] == labels[:-1]) if merge_repeated and len(labels) else None
            paths[number].append(labels if repeated is None else labels[~repeated])
    indices, values, shapes = zip(*(_entries(each) for each in paths), strict=True)
    return (*indices, *values, *shapes, scores.astype(inputs.dtype))


def _entries(paths: list[Array]) -> tuple[Array, Array, Array]:
    """Return rows of several lengths as the indices, values and shape of a sparse matrix."""
    counts = np.array([len(path) for path in paths], np.int64)
    rows = np.repeat(np.arange(len(paths)), counts)
    columns = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    values = np.concatenate([np.zeros(0, np.int64), *paths]).astype(np.int64)
    shape = np.array([len(paths), counts.max(initial=0)], np.int64)
    return np.stack([rows, columns], axis=1).astype(np.int64), values, shape


class _Prefix:
    """A label sequence of the search: its last label after another sequence, or the empty one.

    Attributes:
        blank, labeled: Log probabilities of its paths that end with a blank, and with its last label.
        total: That of all its paths; `_NEVER` if the search does not keep it.
        before: `blank` and `total` before the current step.
    """

    __slots__ = ("before", "blank", "children", "label", "labeled", "parent", "total")

    def __init__(self, parent: _Prefix | None, label: int) -> None:
        self.parent, self.label = parent, label
        self.children: dict[int, _Prefix] = {}
        self.blank = self.labeled = self.total = _NEVER
        self.before = _NEVER, _NEVER

    def labels(self) -> Array:
        """Return all labels."""
        found, prefix = [], self
        while prefix.parent is not None:
            found.append(prefix.label)
            prefix = prefix.parent
        return np.array(found[::-1], np.int64)

    def stay(self, scores: list[float]) -> None:
        """Add the paths that keep the labels in this step."""
        if self.parent is not None:
            if self.parent.total > _NEVER:
                blank, total = self.parent.before
                arriving = blank if self.label == self.parent.label else total
                self.labeled = _log_add(self.labeled, arriving)
            self.labeled += scores[self.label]
        self.blank = self.before[1] + scores[-1]
        self.total = _log_add(self.blank, self.labeled)

    def drop(self) -> None:
        """Stop keeping the sequence."""
        self.blank = self.labeled = self.total = _NEVER


def _log_add(a: float, b: float) -> float:
    larger, smaller = (a, b) if a > b else (b, a)
    return larger if smaller == _NEVER else larger + math.log1p(math.exp(smaller - larger))


def _search(scores: Array, width: int) -> list[tuple[Array, float]]:
    """Return the best label sequences with their log probabilities, for the [steps, classes] log probabilities."""
    root = _Prefix(None, -1)
    root.blank = root.total = 0.0
    kept = [root]
    for at in batches(scores, 16):
        kept.sort(key=attrgetter("total"), reverse=True)
        for prefix in kept:
            prefix.before = prefix.blank, prefix.total
        listed = at.tolist()
        for prefix in kept:
            prefix.stay(listed)
        kept = _grow(kept, at[:-1], width)
    kept.sort(key=attrgetter("total"), reverse=True)
    return [(prefix.labels(), prefix.total) for prefix in kept]


def _grow(kept: list[_Prefix], at: Array, width: int) -> list[_Prefix]:
    """Add a label to each sequence, and return the `width` best of the old and the new ones."""
    # The best sequences so far, the worst one first. The number keeps equal ones from being compared.
    heap = [(prefix.total, number, prefix) for number, prefix in enumerate(kept)]
    heapq.heapify(heap)
    number = len(heap)
    for prefix in kept:
        blank, total = prefix.before
        floor = heap[0][0] if len(heap) == width else _NEVER
        if total <= floor:
            continue
        grown = total + at
        if prefix.label >= 0:
            grown[prefix.label] = blank + at[prefix.label]  # without a blank between them, the labels would merge
        for label in sorted({*np.flatnonzero(grown > floor).tolist(), *prefix.children}):
            score = float(grown[label])
            child = prefix.children.get(label)
            if child is not None and child.total > _NEVER:
                continue
            if score <= floor:
                if child is not None:
                    # As in TensorFlow: a sequence dropped in this step before its parent grew does not grow any more.
                    child.before = _NEVER, _NEVER
                continue
            if child is None:
                child = prefix.children[label] = _Prefix(prefix, label)
            child.blank, child.labeled, child.total = _NEVER, score, score
            entry = (score, number, child)
            number += 1
            if len(heap) < width:
                heapq.heappush(heap, entry)
            else:
                heapq.heapreplace(heap, entry)[2].drop()
            floor = heap[0][0] if len(heap) == width else _NEVER
    return [prefix for _, _, prefix in heap]
