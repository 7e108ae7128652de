"""Strings, lookups and n-grams, beyond onnx's own suite."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.interop.onnx.one_node import one_node, run_model

ML = "ai.onnx.ml"


def strings(*texts: str) -> np.ndarray[Any, Any]:
    return np.array([text.encode() for text in texts], object)


@pytest.mark.parametrize("known", [True, False])
async def test_values_without_a_key_get_the_default(known: bool) -> None:
    x = {"x": strings("b", "nowhere", "a", "b")}
    model = one_node(
        "LabelEncoder",
        x,
        domain=ML,
        opset=4,
        known_shapes=known,
        keys_strings=["a", "b"],
        values_int64s=[5, 6],
        default_int64=-7,
    )
    [y] = await run_model(model, x)
    np.testing.assert_array_equal(y, np.array([6, -7, 5, 6]))


async def test_nan_is_a_key_and_the_last_of_equal_keys_wins() -> None:
    x = {"x": np.array([np.nan, 1.0, 2.0, 3.0], np.float32)}
    keys: dict[str, Any] = {"keys_floats": [1.0, np.nan, 2.0, 1.0], "values_strings": ["first", "nan", "two", "last"]}
    [y] = await run_model(one_node("LabelEncoder", x, domain=ML, opset=4, default_string="none", **keys), x)
    assert y.tolist() == [b"nan", b"last", b"two", b"none"]


@pytest.mark.parametrize("texts", [("  a b  c ", "d", ""), ("", ""), ()])
@pytest.mark.parametrize("most", [None, 1, 2])
async def test_split_at_white_space_equals_pythons(texts: tuple[str, ...], most: int | None) -> None:
    x = {"x": strings(*texts)}
    options: dict[str, Any] = {} if most is None else {"maxsplit": most}
    pieces, counts = await run_model(one_node("StringSplit", x, ("y", "z"), **options), x)
    rows = [text.split(None, -1 if most is None else most) for text in texts]
    assert counts.tolist() == [len(row) for row in rows]
    width = max(map(len, rows), default=0)
    assert pieces.shape == (len(texts), width)
    assert pieces.tolist() == [[piece.encode() for piece in row] + [b""] * (width - len(row)) for row in rows]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("skips", [0, 1, 3])
async def test_n_grams_are_counted(skips: int, known: bool) -> None:
    random = np.random.default_rng(4)
    x = random.integers(0, 5, (3, 6))
    grams = [(0,), (3,), (1, 2), (0, 0), (4, 1), (2, 0, 1), (3, 3, 3), (1, 2, 4)]
    columns = [7, 2, 0, 1, 3, 4, 5, 6]
    wanted = np.zeros((3, 8), np.float32)
    for row, values in enumerate(x.tolist()):
        for gram, column in zip(grams, columns, strict=True):
            for skip in range(1 if len(gram) == 1 else skips + 1):
                reach = (len(gram) - 1) * (skip + 1)
                seen = Counter(tuple(values[i : i + reach + 1 : skip + 1]) for i in range(len(values) - reach))
                wanted[row, column] += seen[gram]
    model = one_node(
        "TfIdfVectorizer",
        {"x": x},
        known_shapes=known,
        mode="TF",
        min_gram_length=1,
        max_gram_length=3,
        max_skip_count=skips,
        ngram_counts=[0, 2, 8],
        ngram_indexes=columns,
        pool_int64s=[token for gram in grams for token in gram],
    )
    [y] = await run_model(model, {"x": x})
    np.testing.assert_array_equal(y, wanted)
