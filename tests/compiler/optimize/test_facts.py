"""Tests of the facts about memory layout that optimizations use."""

from __future__ import annotations

import numpy as np

import aioflow as af
from aioflow.compiler.ir import Edge
from aioflow.compiler.optimize.facts import Facts
from tests.compiler.optimize.steps import step


def test_layout_of_an_identity_n_is_that_of_each_value() -> None:
    x = af.placeholder("float32", [2, 3])
    rows = af.tile(af.constant(np.ones((1, 2), np.float32)), [3, 1])
    same = af.identity_n([rows, af.transpose(x)])
    graph = step(list(same), [x])
    facts = Facts(graph.nodes)
    assert facts.is_row_major(Edge(rows.op.name, 0))
    assert not facts.is_row_major(Edge(same[1].op.name, 1))
