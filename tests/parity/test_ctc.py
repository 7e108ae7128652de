"""CTC losses, their gradients, and the decoders."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

RNG = np.random.default_rng(20)
INDICES: Final = [[0, 0], [0, 1], [0, 2], [1, 0], [2, 0], [2, 1]]
VALUES: Final = [1, 1, 0, 2, 0, 1]
STEPS: Final = [8, 5, 3]

OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "collapsed labels": {"preprocess_collapse_repeated": True},
    "no merging": {"ctc_merge_repeated": False},
    "longer ignored": {"ignore_longer_outputs_than_inputs": True},
}


def logits(*shape: int, dtype: Any = np.float32) -> Any:
    return (3 * RNG.standard_normal(shape)).astype(dtype)


def loss(m: Any, x: Any, steps: Any = STEPS, values: Any = VALUES, **how: Any) -> Any:
    labels = m.SparseTensor(INDICES, m.constant(values, m.int32), [3, 3])
    return m.nn.ctc_loss(labels, x, np.array(steps, np.int32), **how)


@pytest.mark.parametrize("name", OPTIONS)
def test_losses_and_their_gradients(parity: Any, name: str) -> None:
    how = OPTIONS[name]
    parity(lambda m, x: loss(m, x, **how), logits(8, 3, 4))
    parity(lambda m, x: loss(m, x, time_major=False, **how), logits(3, 8, 4))
    parity(lambda m, x: loss(m, x, **how), logits(9, 3, 4, dtype=np.float64), rtol=1e-7)
    # Too few steps for repeated labels (inf), a single step, and labels that end with a blank.
    parity(lambda m, x: loss(m, x, [3, 1, 2], **how), logits(8, 3, 4))
    parity(lambda m, x: loss(m, x, values=[1, 0, 3, 2, 1, 1], **how), logits(8, 3, 4))
    if name == "longer ignored":
        parity(lambda m, x: loss(m, x, [2, 1, 2], **how), logits(8, 3, 4))


def test_long_sequences(parity: Any) -> None:
    rows = np.stack([np.arange(240) // 60, np.arange(240) % 60], axis=1)
    values = RNG.integers(0, 19, 240)

    def build(m: Any, x: Any) -> Any:
        labels = m.SparseTensor(rows, m.constant(values, m.int32), [4, 60])
        return m.nn.ctc_loss(labels, x, np.array([200, 150, 120, 200], np.int32))

    # TensorFlow loses four digits of a gradient in float32.
    parity(build, logits(200, 4, 20, dtype=np.float64))


DENSE: Final = np.array([[1, 1, 2, 0], [2, 0, 0, 0], [3, 1, 3, 3]])


@pytest.mark.parametrize("blank", [None, 0, 1, -1])
def test_losses_of_dense_labels(parity: Any, blank: int | None) -> None:
    # No label may be the blank, which is 0 if not given.
    values = {None: DENSE, 0: DENSE, 1: np.where(DENSE == 1, 0, DENSE), -1: np.where(DENSE == 3, 0, DENSE)}[blank]

    def build(m: Any, x: Any) -> Any:
        return m.nn.ctc_loss_v2(m.constant(values, m.int32), x, [3, 1, 4], [8, 5, 7], blank_index=blank)

    parity(build, logits(8, 3, 4))
    parity(
        lambda m, x: m.nn.ctc_loss_v2(
            m.constant(values, m.int32), x, [3, 1, 4], [8, 5, 7], logits_time_major=False, blank_index=blank
        ),
        logits(3, 8, 4),
    )


def test_losses_of_sparse_labels_with_any_blank(parity: Any) -> None:
    for blank, values in ((0, [1, 1, 2, 2, 3, 1]), (-1, VALUES), (2, [1, 1, 0, 3, 0, 1])):

        def build(m: Any, x: Any, blank: int = blank, values: Any = values) -> Any:
            labels = m.SparseTensor(INDICES, m.constant(values, m.int32), [3, 3])
            return m.nn.ctc_loss_v2(labels, x, None, np.array(STEPS, np.int32), blank_index=blank)

        parity(build, logits(8, 3, 4))


def flat(decoded: Any) -> list[Any]:
    paths, score = decoded
    return [part for path in paths for part in (path.indices, path.values, path.dense_shape)] + [score]


@pytest.mark.parametrize("merged", [True, False])
def test_greedy_decoder(parity: Any, merged: bool) -> None:
    x = np.repeat(logits(6, 3, 4), 2, axis=0)
    for blank in (None, 0, -2):
        parity(
            lambda m, x, b=blank: flat(m.nn.ctc_greedy_decoder(x, [12, 7, 0], merge_repeated=merged, blank_index=b)), x
        )
    parity(lambda m, x: flat(m.nn.ctc_greedy_decoder(x, [12, 7, 1])), x.astype(np.float64))


@pytest.mark.parametrize("merged", [True, False])
def test_beam_search_decoder(parity: Any, merged: bool) -> None:
    # Equal steps would make equal scores, whose order is not defined.
    x = np.repeat(logits(6, 3, 5), 2, axis=0) + 0.1 * logits(12, 3, 5)
    for width, paths in ((1, 1), (3, 2), (10, 3), (100, 5)):
        parity(
            lambda m, x, w=width, p=paths: flat(
                m.nn.ctc_beam_search_decoder(x, [12, 7, 4], beam_width=w, top_paths=p, merge_repeated=merged)
            ),
            x,
        )
    if not merged:
        parity(lambda m, x: flat(m.nn.ctc_beam_search_decoder_v2(x, [12, 7, 4], 4, 2)), x)


def test_labels(parity: Any) -> None:
    labels = np.array([[1, 1, 2, 2, 1], [3, 3, 3, 0, 0], [5, 4, 5, 4, 5]], np.int32)
    parity(lambda m, y: list(m.nn.collapse_repeated(y, [5, 3, 4])), labels, static=False)
    parity(lambda m, y: list(m.nn.collapse_repeated(y, np.zeros(3, np.int64))), labels, static=False)
    parity(lambda m, y: list(m.nn.ctc_unique_labels(y)), labels, static=False)
