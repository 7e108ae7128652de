"""Graph building against TensorFlow: node names, devices, control inputs and colocation groups of one program.

Two differences are deliberate; no program here depends on them. aioflow writes the device that a device function
returns in canonical form ("/gpu:5" becomes "/device:GPU:5"). Such a function may return None for "unchanged".
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow

Program = Callable[[Any], Any]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _group(op: Any) -> list[str]:
    try:
        return [_text(g) for g in op.get_attr("_class")]
    except (ValueError, LookupError):
        return []


def _nodes(module: Any, program: Program) -> dict[str, Any]:
    """Return the result of the program and the nodes that it made."""
    with module.Graph().as_default() as graph:
        seen = program(module)
        nodes = {
            op.name: (
                op.type,
                [t.name for t in op.inputs],
                sorted(c.name for c in op.control_inputs),
                op.device,
                _group(op),
            )
            for op in graph.get_operations()
        }
        return {"seen": seen, "order": list(nodes), "nodes": nodes}


def _unique(m: Any) -> Any:
    graph = m.get_default_graph()
    names = ["a", "A", "a_1", "A", "a", "b/c", "B/c", "Add", "add", "ADD", "a_1", "a_1_1"]
    return [graph.unique_name(n, mark_as_used=i % 5 != 4) for i, n in enumerate(names)]


def _repeated_nodes(m: Any) -> Any:
    return [m.constant(1, name=n).name for n in ("x_1", "x", "X", "x", "y", "Y", "x_1", "x_1")]


def _default_names(m: Any) -> Any:
    x = m.placeholder("float32", [2])
    made = [m.constant(1), m.constant(1), m.no_op(), m.identity(x), m.identity(x), m.stop_gradient(x), m.group(x)]
    return [e.name for e in (x, *made)]


def _scopes(m: Any) -> Any:
    seen = []
    for name in ("a", "a", "A", "a/b", "b"):
        with m.name_scope(name) as outer:
            seen += [outer, m.no_op(name="n").name]
            with m.name_scope("b") as inner, m.name_scope("_c") as innermost:
                seen += [inner, innermost, m.no_op(name="_n").name]
            with m.name_scope(outer) as again:
                seen += [again, m.no_op(name="n").name]
            with m.name_scope("") as root:
                seen += [root, m.no_op(name="n").name]
            with m.name_scope(None) as root:
                seen += [root, m.no_op(name="a").name]
    with m.name_scope("a/") as scope:
        seen += [scope, m.no_op(name="n").name, m.no_op(name="whole/name/").name]
    return seen


def _default_scope_names(m: Any) -> Any:
    x = m.constant(1)
    seen = []
    for arguments in ((None, "d", [x]), ("n", "d", [x]), ("n", None, [x]), (None, "d"), ("d",)):
        with m.name_scope(*arguments) as scope:
            seen.append(scope)
    return seen


def _constants_of_a_node(m: Any) -> Any:
    x = m.placeholder("float32", [2], name="x")
    with m.name_scope("s"):
        return [m.multiply(x, 2.0, name="y").name, m.multiply(3.0, x, name="y").name, m.multiply(x, x, name="y").name]


def _devices(m: Any) -> Any:
    def at(name: str) -> str:
        device: str = m.constant(1, name=name).device
        return device

    seen = [at("none")]
    with m.device("/job:w/gpu:0"):
        seen.append(at("a"))
        for inner in ("/cpu:1", "/task:3", "/job:ps", "/device:TPU:2", "", "/gpu"):
            with m.device(inner):
                seen.append(at("b"))
                with m.device("/replica:1"):
                    seen.append(at("c"))
        with m.device(None):
            seen.append(at("d"))
            with m.device("cpu:0"):
                seen.append(at("e"))
        seen.append(at("f"))
    return seen


def _device_functions(m: Any) -> Any:
    seen: list[str] = []

    def choose(op: Any) -> str:
        seen.append(op.device)
        return "/job:f/device:CPU:7" if op.name.startswith("x") else ""

    with m.device("/job:outer/task:2"), m.device(choose):
        seen += [m.constant(1, name="x").device, m.constant(1, name="y").device]
        with m.device("/device:GPU:1"):
            seen += [m.constant(1, name="x").device, m.constant(1, name="y").device]
            with m.device(None):
                seen += [m.constant(1, name="x").device]
    return seen


def _controls(m: Any) -> Any:
    a, b = m.constant(1, name="a"), m.constant(1, name="b")
    before = m.constant(0, name="before")
    with m.control_dependencies([a]):
        c = m.constant(2, name="c")
        m.identity(c, name="reads_a_member")
        m.identity(a, name="reads_the_control_input")
        m.identity(before, name="reads_neither")
        with m.control_dependencies([b, b, "a:0", "before"]):
            m.constant(1, name="both")
            m.identity(c, name="inner_reads_outer_member")
            inside = m.identity(before, name="inside")
            m.add(c, inside, name="reads_members_of_both")
            with m.control_dependencies(None):
                m.constant(1, name="free")
                with m.control_dependencies([b]):
                    m.no_op(name="only_b")
        with m.control_dependencies([]):
            m.no_op(name="empty")
        m.multiply(b, 1, name="with_a_constant")
    with m.control_dependencies([a]):
        m.identity(c, name="second_block")
    m.no_op(name="after")


def _groups_and_tuples(m: Any) -> Any:
    a, b = m.constant(1, name="a"), m.constant(2, name="b")
    with m.name_scope("s"):
        as_tuple = getattr(m, "tuple", None) or m.tuple_
        together = as_tuple([a, None, b], name="t", control_inputs=[m.no_op(name="also")])
    m.group(a, b, name="g")
    m.group()
    return [None if t is None else t.name for t in together]


def _colocation(m: Any) -> Any:
    with m.device("/device:GPU:0"):
        a = m.constant(1, name="a")
    with m.device("/device:CPU:1"):
        b = m.constant(1, name="b")
    plain = m.constant(1, name="plain")
    with m.device("/device:CPU:9"), m.colocate_with(a):
        c = m.constant(1, name="c")
        with m.device("/job:x/device:CPU:3"):
            m.constant(1, name="d")
        with m.colocate_with(b):
            m.constant(1, name="e")
        with m.colocate_with(b, ignore_existing=True):
            m.constant(1, name="f")
        with m.colocate_with(plain):
            m.constant(1, name="f2")
        with m.colocate_with(None, ignore_existing=True):
            m.constant(1, name="g")
    with m.colocate_with(c):
        m.constant(1, name="h")
    with m.colocate_with(plain):
        m.constant(1, name="i")


def _collections(m: Any) -> Any:
    graph = m.get_default_graph()
    a, b = m.constant(1, name="part/a"), m.constant(1, name="b")
    for item in (a, b, 3):
        m.add_to_collection("things", item)
    graph.add_to_collections(["things", "others"], a)
    found = [graph.get_collection("things", s) for s in (None, "", "part/", "b", ".*a")]
    return [[getattr(i, "name", i) for i in items] for items in found], sorted(graph.get_all_collection_keys())


def _lookups(m: Any) -> Any:
    graph = m.get_default_graph()
    m.constant(1, name="a")
    seen = []
    for name in ("a", "a:0", "nope", "nope:0", "a:1", "a:x", "^a", ":0"):
        for limits in ({}, {"allow_tensor": False}, {"allow_operation": False}):
            try:
                seen.append(graph.as_graph_element(name, **limits).name)
            except (ValueError, KeyError, LookupError):
                seen.append("refused")
    return seen


PROGRAMS = {
    f.__name__.strip("_"): f
    for f in (
        _unique,
        _repeated_nodes,
        _default_names,
        _scopes,
        _default_scope_names,
        _constants_of_a_node,
        _devices,
        _device_functions,
        _controls,
        _groups_and_tuples,
        _colocation,
        _collections,
        _lookups,
    )
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_the_same_program_builds_the_same_graph(tf: Any, program: Program) -> None:
    _agree(_nodes(aioflow, program), _nodes(tf, program))


def _agree(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["seen"] == theirs["seen"]
    assert set(ours["nodes"]) == set(theirs["nodes"])
    for name, node in theirs["nodes"].items():
        assert ours["nodes"][name] == node, name
    assert ours["order"] == theirs["order"]


@pytest.mark.parametrize("seed", range(60))
def test_random_nests_of_scopes_build_the_same_graph(tf: Any, seed: int) -> None:
    program = _random_program(seed)
    _agree(_nodes(aioflow, program), _nodes(tf, program))


def _random_program(seed: int) -> Program:
    def program(m: Any) -> None:
        rng = random.Random(seed)
        pool = [m.constant(1, name="first")]
        _grow(m, rng, pool, 0)

    return program


def _grow(m: Any, rng: random.Random, pool: list[Any], depth: int) -> None:
    for _ in range(rng.randint(2, 4)):
        kind = rng.random()
        if kind < 0.35:
            pool.append(m.constant(1, name=rng.choice("abAB")))
        elif kind < 0.6:
            pool.append(m.add(rng.choice(pool), rng.choice(pool), name=rng.choice("abAB")))
        elif depth < 5:
            with _random_scope(m, rng, pool):
                _grow(m, rng, pool, depth + 1)


def _random_scope(m: Any, rng: random.Random, pool: list[Any]) -> Any:
    devices = ["/cpu:0", "/gpu:1", "/job:w", "/task:2", "/job:p/replica:1/gpu:0", "", None]
    names = ["s", "S", "t", "_u" if m.get_default_graph().get_name_scope() else "u", "s/", "", None]
    scopes: list[Callable[[], Any]] = [
        lambda: m.name_scope(rng.choice(names)),
        lambda: m.device(rng.choice(devices)),
        lambda: m.control_dependencies(rng.choices(pool, k=rng.randint(0, 3))),
        lambda: m.control_dependencies(None),
        lambda: m.colocate_with(rng.choice(pool), ignore_existing=rng.random() < 0.3),
    ]
    return rng.choice(scopes)()


# ── properties of nodes ──────────────────────────────────────────────────────────────────────────────────────────────


def _one_node(m: Any) -> Any:
    return m.constant(1.0, name="a").op


def _put_together(m: Any) -> Any:
    a, b = m.constant(1.0, name="a"), m.constant(1.0, name="b")
    with m.colocate_with(b), m.colocate_with(a):
        return m.identity(a, name="c").op


def _waiting(m: Any) -> Any:
    a, b = m.constant(1.0, name="a"), m.constant(1.0, name="b")
    with m.control_dependencies([a, b]):
        return m.split(m.placeholder("float32", [2, 4], name="x"), 2, 1, name="c")[0].op


def _of_many_attributes(m: Any) -> Any:
    x = m.placeholder("float32", [1, 4, 4, 1], name="x")
    filters = m.placeholder("float32", [2, 2, 1, 1], name="f")
    return m.nn.conv2d(x, filters, [1, 1, 2, 1], "SAME", name="c").op


def _of_many_types(m: Any) -> Any:
    return m.identity_n([m.constant(1.0), m.constant(1)])[0].op


ATTRIBUTES = ("T", "padding", "strides", "dilations", "data_format", "use_cudnn_on_gpu", "num_split", "_class", "dtype")


@pytest.mark.parametrize(
    "build", [_one_node, _put_together, _waiting, _of_many_attributes, _of_many_types], ids=lambda f: f.__name__
)
def test_node_properties_have_the_same_values_and_types(tf: Any, build: Any) -> None:
    def said(m: Any) -> Any:
        with m.Graph().as_default() as graph:
            op = build(m)
            known: dict[str, Any] = {}
            for name in ATTRIBUTES:
                try:
                    known[name] = op.get_attr(name)
                except (ValueError, LookupError):
                    known[name] = "none"
            lists = [op.control_inputs, op.outputs, op.colocation_groups(), op.outputs[0].consumers()]
            lists += [graph.get_operations(), graph.get_collection("none"), graph.get_all_collection_keys()]
            lists += [graph.collections, op.values()]
            forms = [(type(found), [getattr(item, "name", item) for item in found]) for found in lists]
            attributes = {name: (type(value), _plain(value)) for name, value in known.items()}
        return forms, {name: found for name, found in attributes.items() if found[0].__name__ != "DType"}

    assert said(aioflow) == said(tf)


def _plain(value: Any) -> Any:
    """Replace dtypes by their names."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return getattr(value, "name", value)


def _beside_a_constant(m: Any) -> None:
    a = m.constant(1.0, name="a")
    with m.colocate_with(a):
        m.get_variable("v", initializer=0.0)
        m.Variable(1.0, name="w")


def _beside_a_placed_constant(m: Any) -> None:
    with m.device("/cpu:1"):
        a = m.constant(1.0, name="a")
    with m.device("/cpu:0"), m.colocate_with(a):
        m.get_variable("v", initializer=0.0)
    with m.colocate_with(a), m.device("/cpu:0"):
        m.get_variable("w", initializer=0.0)


def _beside_a_variable(m: Any) -> None:
    v = m.get_variable("v", initializer=0.0)
    with m.colocate_with(v):
        m.get_variable("w", initializer=0.0)


def _beside_two(m: Any) -> None:
    a, b = m.constant(1.0, name="a"), m.constant(1.0, name="b")
    with m.colocate_with(b), m.colocate_with(a):
        m.get_variable("v", initializer=0.0)
    with m.colocate_with(b), m.colocate_with(a, ignore_existing=True):
        m.get_variable("w", initializer=0.0)
    with m.colocate_with(b), m.colocate_with(None, ignore_existing=True):
        m.get_variable("x", initializer=0.0)


def _slots(m: Any) -> None:
    a, v = m.constant(1.0, name="a"), m.get_variable("v", initializer=0.0)
    with m.colocate_with(a):
        m.train.MomentumOptimizer(0.1, 0.9).minimize(v * 2.0)
        m.train.get_or_create_global_step()


@pytest.mark.parametrize(
    "build",
    [_beside_a_constant, _beside_a_placed_constant, _beside_a_variable, _beside_two, _slots],
    ids=lambda f: f.__name__,
)
def test_variables_have_the_same_devices_and_groups(tf: Any, build: Any) -> None:
    def placed(m: Any) -> Any:
        with m.Graph().as_default() as graph:
            build(m)
            ops = [op for op in graph.get_operations() if op.type == "VarHandleOp"]
            initial = [op for op in graph.get_operations() if op.name.endswith("/initial_value")]
            return {op.name: (op.colocation_groups(), op.device) for op in ops + initial}

    found = placed(aioflow)
    assert found == placed(tf)
    assert found


# ── dtypes ───────────────────────────────────────────────────────────────────────────────────────────────────────────

FORMS: list[Any] = [
    *("float32", "float", "half", "double", "int32", "bool", "string", "resource", "nonsense", ""),
    *(np.float16, np.float32, np.int64, np.uint8, np.bool_, np.object_, np.str_, np.bytes_, np.datetime64, np.generic),
    *(np.dtype("float32"), np.dtype(">i4"), np.dtype("O"), np.dtype("U3"), np.dtype("M8[s]")),
    *(
        float,
        int,
        bool,
        complex,
        str,
        bytes,
        object,
        list,
        type(None),
        1,
        3,
        7,
        0,
        1000,
        -1,
        None,
        (),
        "float32 ",
        object(),
    ),
]


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int32", "int64", "uint8", "bool", "string"])
def test_dtype_equality(tf: Any, name: str) -> None:
    def equal(m: Any) -> Any:
        dtype = getattr(m, name)
        return [(dtype == form, form == dtype, dtype != form, dtype in [form]) for form in FORMS]

    assert equal(aioflow) == equal(tf)
    assert hash(getattr(aioflow, name)) == hash(getattr(tf, name))


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int8", "uint16", "int64", "bool", "string"])
def test_dtype_properties(tf: Any, name: str) -> None:
    def said(m: Any) -> Any:
        dtype = getattr(m, name)
        found: list[Any] = [dtype.name, dtype.as_numpy_dtype, dtype.as_datatype_enum, dtype.is_numpy_compatible]
        for name_of in ("limits", "min", "max"):
            try:
                found.append(getattr(dtype, name_of))
            except (ValueError, TypeError):
                found.append("none")
        return [*found, *(dtype.is_compatible_with(form) for form in ("float32", np.int64, np.dtype("O")))]

    assert said(aioflow) == said(tf)
