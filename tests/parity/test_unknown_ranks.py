"""Tensors of unknown rank: values, static shapes and gradients against TensorFlow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.unknown_ranks import CASES

# TensorFlow rejects these, although the fed values are valid.
OURS_ALONE = {"softmax cross entropy", "repeat along -1"}
KNOWN = {"gather_nd": [(2, 3, 4), None], "gather_nd, two batches": [(2, 3, 4), None]}


@pytest.mark.parametrize("name", sorted(CASES.keys() - OURS_ALONE))
def test_ranks_known_only_in_the_step(parity: Any, name: str) -> None:
    build, values = CASES[name]
    parity(build, *values, shapes=KNOWN.get(name, [None] * len(values)))
