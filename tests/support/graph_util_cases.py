"""A model with variables, a branch and a loop, and its definitions as `graph_util` rewrites them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

X: Final = np.array([1.0, 2.0], np.float32)


def model(m: Any) -> Any:
    """Make the model in the default graph and return the initializer of its variables."""
    x, i = m.placeholder("float32", [2], name="x"), m.placeholder("int32", [], name="i")
    v = m.get_variable("v", initializer=np.array([1.0, 2.0], np.float32), use_resource=True)
    w = m.get_variable("w", initializer=np.float32(3.0), use_resource=True)
    product = m.stop_gradient(m.multiply(m.identity(x, name="same"), v, name="product"), name="stopped")
    picked = m.gather(v, i, name="picked")
    chosen = m.cond(i > 0, lambda: product * w, lambda: product - w)
    looped = m.while_loop(lambda n, _: n < 2, lambda n, y: (n + 1, y + w), [0, chosen])[1]
    with m.control_dependencies([m.no_op(name="waited")]):
        held = m.identity(picked, name="held")
    m.add(looped, held, name="y")
    m.assign_add(v, x, name="unused")
    return m.global_variables_initializer()


def described(graph_def: Any, names: Any = ()) -> list[tuple[str, str, list[str]]]:
    """Return the nodes (of these names) with their ops and inputs."""
    # TensorFlow reads a variable anew for each use.
    inputs: dict[str, Any] = {n.name: n.inputs if hasattr(n, "inputs") else n.input for n in graph_def.node}
    found = [
        (n.name, n.op, ["a read" if "ReadVariableOp" in name else name for name in inputs[n.name]])
        for n in graph_def.node
    ]
    return sorted(f for f in found if not names or f[0] in names)


def facts(m: Any, graph: Any, frozen: Any) -> dict[str, Any]:
    """Return what the functions that wait for nothing return."""
    util, definition = m.graph_util, graph.as_graph_def()
    nodes = {n.name: n for n in definition.node}
    trained = util.remove_training_nodes(definition, protected_nodes=["same"])
    return {
        "frozen": described(frozen, ("v", "w", "x", "product", "picked", "picked/axis", "stopped", "waited")),
        "kinds": sorted({n.op for n in frozen.node} & {"VarHandleOp", "ReadVariableOp", "ResourceGather", "GatherV2"}),
        "part": described(util.extract_sub_graph(definition, ["product"]), ("same", "product", "v", "x")),
        "without": [name in {n.name for n in trained.node} for name in ("same", "stopped", "held", "waited")],
        "cpu": [util.must_run_on_cpu(nodes[name]) for name in ("x", "picked", "v")],
        "pinned": util.must_run_on_cpu(nodes["v"], pin_variables_on_cpu=True),
        "int32": util.must_run_on_cpu(m.constant(1, name="int").op),
        "text": util.must_run_on_cpu(m.constant("a", name="text").op),
        "float": util.must_run_on_cpu(m.constant(1.0, name="float").op),
        "shape": util.tensor_shape_from_node_def_name(graph, "product").as_list(),
        "port": util.tensor_shape_from_node_def_name(graph, "product:0").as_list(),
    }


FACTS: Final[dict[str, Any]] = {
    "frozen": [
        ("picked", "GatherV2", ["v", "i", "picked/axis"]),
        ("picked/axis", "Const", []),
        ("product", "Mul", ["same", "a read"]),
        ("stopped", "StopGradient", ["product"]),
        ("v", "Const", []),
        ("w", "Const", []),
        ("waited", "NoOp", []),
        ("x", "Placeholder", []),
    ],
    "kinds": ["GatherV2"],
    "part": [
        ("product", "Mul", ["same", "a read"]),
        ("same", "Identity", ["x"]),
        ("v", "VarHandleOp", []),
        ("x", "Placeholder", []),
    ],
    "without": [True, False, True, True],
    "cpu": [False, False, False],
    "pinned": False,
    "int32": True,
    "text": True,
    "float": False,
    "shape": [2],
    "port": [2],
}


def outcome(call: Callable[[], Any]) -> str:
    try:
        call()
    except (AssertionError, KeyError):
        return "absent"
    except TypeError:
        return "TypeError"
    return "passes"
