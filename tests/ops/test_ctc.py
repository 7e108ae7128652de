"""CTC: sums over all paths, refused labels, and the limits of TensorFlow's op that do not apply."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError
from aioflow.testing.evaluate import evaluate


def loss(x: Any, rows: list[list[int]], steps: list[int], **how: Any) -> af.Tensor:
    places = [[n, m] for n, row in enumerate(rows) for m in range(len(row))]
    flat = [label for row in rows for label in row]
    labels = af.SparseTensor(
        np.array(places, np.int64).reshape(-1, 2), af.constant(np.array(flat, np.int32)), [len(rows), 9]
    )
    return af.nn.ctc_loss(labels, x, np.array(steps, np.int32), **how)


def merged(path: tuple[int, ...], blank: int) -> list[int]:
    return [label for label, _ in itertools.groupby(path) if label != blank]


@pytest.mark.parametrize("labels", [[0, 1], [1, 1], [2], []])
def test_loss_sums_over_all_paths(labels: list[int]) -> None:
    x = np.random.default_rng(1).standard_normal((4, 1, 4))
    scores = x[:, 0] - np.log(np.exp(x[:, 0]).sum(axis=1, keepdims=True))
    paths = [path for path in itertools.product(range(4), repeat=4) if merged(path, 3) == labels]
    total = sum(np.exp(sum(scores[t, label] for t, label in enumerate(path))) for path in paths)
    assert evaluate([loss(af.constant(x), [labels], [4])])[0] == pytest.approx([-np.log(total)])


def test_beam_that_keeps_all_prefixes_finds_the_likeliest_labels() -> None:
    x = np.random.default_rng(2).standard_normal((4, 1, 3))
    scores = x[:, 0] - np.log(np.exp(x[:, 0]).sum(axis=1, keepdims=True))
    totals: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(3), repeat=4):
        key = tuple(merged(path, 2))
        totals[key] = totals.get(key, 0.0) + np.exp(sum(scores[t, label] for t, label in enumerate(path)))
    best = sorted(totals.items(), key=lambda item: -item[1])[:3]
    paths, log_probabilities = af.nn.ctc_beam_search_decoder_v2(x, [4], 100, 3)
    *found, scores = evaluate([*(path.values for path in paths), log_probabilities])
    assert [tuple(labels.tolist()) for labels in found] == [labels for labels, _ in best]
    assert scores[0] == pytest.approx(np.log([total for _, total in best]))


@pytest.mark.parametrize(
    ("rows", "steps", "why"),
    [
        ([[0, 1, 2], [0]], [2, 2], "sequence 0 has more labels than time steps"),
        ([[3, 1], [0]], [3, 3], "a label follows a blank"),
        ([[-1], [0]], [3, 3], "a label is negative"),
        ([[0], [0]], [3, 5], "a sequence length is out of range"),
        ([[0], [0]], [3, -1], "a sequence length is out of range"),
        ([[0], [0], [1]], [3, 3], "a label belongs to no sequence"),
    ],
)
def test_labels_and_lengths_that_do_not_fit_fail_the_step(rows: Any, steps: Any, why: str) -> None:
    x = af.placeholder("float32", [None, None, 4])
    result = loss(x, rows, steps)
    with pytest.raises(InvalidArgumentError, match=why):
        evaluate([result], {x: np.zeros((4, 2, 4), np.float32)})


def test_sequences_without_labels_or_steps() -> None:
    x = np.zeros((2, 2, 4), np.float32)
    (result,) = evaluate([loss(af.constant(x), [[], []], [2, 0])])
    assert result == pytest.approx([2 * np.log(4), 0])
    (nothing,) = evaluate([loss(af.constant(x[:, :0]), [], [])])
    assert nothing.shape == (0,)


def test_too_few_results_fail_the_step() -> None:
    paths, _ = af.nn.ctc_beam_search_decoder(np.zeros((1, 1, 2), np.float32), [1], beam_width=4, top_paths=4)
    with pytest.raises(InvalidArgumentError, match="too few results for sequence 0"):
        evaluate([paths[0].values])
    paths, _ = af.nn.ctc_beam_search_decoder(np.full((1, 1, 2), np.nan, np.float32), [1])
    with pytest.raises(InvalidArgumentError, match="logits of sequence 0 are not all finite"):
        evaluate([paths[0].values])
    with pytest.raises(InvalidArgumentError, match="top_paths"):
        af.nn.ctc_beam_search_decoder(np.zeros((1, 1, 2), np.float32), [1], beam_width=2, top_paths=3)


@pytest.mark.parametrize("shape", [None, [None, None, 4], [None, None, None]])
@pytest.mark.parametrize(
    ("labels", "counts", "blank"),
    [([[1, 2]], [3], 0), ([[1, 2]], [-1], 0), ([[1, 2**32 + 1]], [2], 0), ([[1, 2]], [2], 4), ([[1, 2]], [2], -5)],
)
def test_dense_labels_that_do_not_fit_are_refused(shape: Any, labels: Any, counts: Any, blank: int) -> None:
    x = af.placeholder("float32", shape)

    def run() -> None:
        result = af.nn.ctc_loss_v2(np.array(labels, np.int64), x, counts, [3], blank_index=blank)
        evaluate([result], {x: np.zeros((3, 1, 4), np.float32)})

    with pytest.raises(InvalidArgumentError, match=r"blank_index is no class|label_length is not|a label is no class"):
        run()


def test_labels_of_unknown_rank_and_of_no_size() -> None:
    y, n = af.placeholder("int32"), af.placeholder("int32")
    x = np.random.default_rng(3).standard_normal((4, 1, 4)).astype(np.float32)
    fetches = [af.nn.ctc_loss_v2(y, x, n, [4]), *af.nn.collapse_repeated(y, n), *af.nn.ctc_unique_labels(y)]
    loss_, merged_, count, unique, index = evaluate(fetches, {y: np.array([[2, 2, 1]], np.int32), n: np.array([3])})
    assert np.isfinite(loss_).all()
    assert [each.tolist() for each in (merged_, count, unique, index)] == [[[2, 1]], [2], [[2, 1, 0]], [[0, 0, 1]]]
    empty = evaluate(list(af.nn.ctc_unique_labels(np.zeros((2, 0), np.int32))))
    assert [each.shape for each in empty] == [(2, 0), (2, 0)]


def test_second_derivative_is_refused() -> None:
    x = af.constant(np.zeros((3, 1, 4), np.float32))
    (slopes,) = af.gradients(loss(x, [[1]], [3]), [x])
    assert slopes is not None
    with pytest.raises(InvalidArgumentError, match="no second derivative"):
        af.gradients(slopes, [x])


def test_missing_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="blank_index"):
        af.nn.ctc_loss_v2(af.SparseTensor([[0, 0]], [1], [1, 1]), np.zeros((3, 1, 4)), None, [3])
    with pytest.raises(InvalidArgumentError, match="lengths"):
        af.nn.ctc_loss_v2([[1]], np.zeros((3, 1, 4)), None, [3])
