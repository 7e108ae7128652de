"""What optimizations are told of how values lie in memory is so."""

from __future__ import annotations

import numpy as np

import aioflow as af
from aioflow.compiler.ir import Edge
from aioflow.compiler.optimize.facts import Facts
from tests.compiler.optimize.steps import step


def test_an_op_that_passes_several_values_on_says_no_more_than_is_true_of_all() -> None:
    x = af.placeholder("float32", [2, 3])
    rows = af.tile(af.constant(np.ones((1, 2), np.float32)), [3, 1])
    same = af.identity_n([rows, af.transpose(x)])
    graph = step(list(same), [x])
    facts = Facts(graph.nodes)
    assert facts.is_row_major(Edge(rows.op.name, 0))
    assert not facts.is_row_major(Edge(same[1].op.name, 1))
