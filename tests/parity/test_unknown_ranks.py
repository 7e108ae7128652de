"""Tensors of unknown rank: values, static shapes and gradients against TensorFlow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unknown_ranks import CASES

# TensorFlow does not take these, though what is fed to them is right.
OURS_ALONE = {"softmax cross entropy", "repeat along -1"}
KNOWN = {"gather_nd": [(2, 3, 4), None], "gather_nd, two batches": [(2, 3, 4), None]}


@pytest.mark.parametrize("name", sorted(CASES.keys() - OURS_ALONE))
def test_a_rank_that_a_step_finds_out(parity: Any, name: str) -> None:
    build, values = CASES[name]
    parity(build, *values, shapes=KNOWN.get(name, [None] * len(values)))
