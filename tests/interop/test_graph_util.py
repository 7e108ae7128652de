"""Definitions rewritten by `graph_util`: parts, variables as constants, nodes of training."""

from __future__ import annotations

import pytest

import aioflow as af
from aioflow.errors import FailedPreconditionError, UnimplementedError
from tests.support.graph_util_cases import FACTS, X, facts, model, outcome


async def test_rewritten_definitions() -> None:
    with af.Graph().as_default() as graph:
        initializer = model(af)
        definition = graph.as_graph_def()
        async with af.Session() as session:
            with pytest.raises(FailedPreconditionError):
                await af.graph_util.convert_variables_to_constants(session, definition, ["y"])
            await session.run(initializer)
            frozen = await af.graph_util.convert_variables_to_constants(session, definition, ["y"])
            kept = await af.graph_util.convert_variables_to_constants(
                session, definition, ["y"], variable_names_blacklist=["v"]
            )
            with pytest.raises(UnimplementedError, match="does more with a variable"):
                await af.graph_util.convert_variables_to_constants(session, definition, ["unused"])
        assert facts(af, graph, frozen) == FACTS
        assert {node.name: node.op for node in kept.nodes}["v"] == "VarHandleOp"
        assert {node.name: node.op for node in kept.nodes}["w"] == "Const"
        assert outcome(lambda: af.graph_util.extract_sub_graph(definition, ["other"])) == "absent"
        assert outcome(lambda: af.graph_util.extract_sub_graph(definition, "y")) == "TypeError"
        assert outcome(lambda: af.graph_util.extract_sub_graph(3, ["y"])) == "TypeError"  # type: ignore[arg-type]
    for rewritten in (frozen, af.graph_util.remove_training_nodes(frozen)):
        with af.Graph().as_default():
            af.import_graph_def(af.GraphDef.FromString(rewritten.SerializeToString()), name="")
            async with af.Session() as session:
                values = [(await session.run("y:0", {"x:0": X, "i:0": i})).tolist() for i in (0, 1)]
        assert values == [[5.0, 8.0], [11.0, 20.0]]
