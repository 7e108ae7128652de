"""Definitions rewritten by `graph_util` against TensorFlow's."""

from __future__ import annotations

from typing import Any

from tests.support.graph_util_cases import FACTS, X, facts, model, outcome


def test_tensorflow_has_the_results_of_the_table(tf: Any) -> None:
    with tf.Graph().as_default() as graph, tf.Session() as session:
        session.run(model(tf))
        definition = graph.as_graph_def()
        frozen = tf.graph_util.convert_variables_to_constants(session, definition, ["y"])
        expected = [session.run("y:0", {"x:0": X, "i:0": i}).tolist() for i in (0, 1)]
        assert facts(tf, graph, frozen) == FACTS
        assert outcome(lambda: tf.graph_util.extract_sub_graph(definition, ["other"])) == "absent"
        assert outcome(lambda: tf.graph_util.extract_sub_graph(definition, "y")) == "TypeError"
        assert outcome(lambda: tf.graph_util.extract_sub_graph(3, ["y"])) == "TypeError"
    assert expected == [[5.0, 8.0], [11.0, 20.0]]
