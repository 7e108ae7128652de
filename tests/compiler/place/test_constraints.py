"""Placement constraints: colocation groups, the devices of each group, and the error for a group without a device."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.place import constraints, rejection
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.constraints import Group, feasible_groups
from aioflow.errors import InvalidArgumentError, OpError, SourceLine, UnimplementedError
from aioflow.graph.dtypes import as_dtype
from aioflow.kernels.registry import KernelDef, KernelRegistry
from tests.support.random_examples import examples

TASK = "/job:localhost/replica:0/task:0"
CPU0, CPU1, GPU0 = (f"{TASK}/device:{d}" for d in ("CPU:0", "CPU:1", "GPU:0"))
ALL = (CPU0, CPU1, GPU0)
PS, WORKER = ("/job:ps/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:0/device:CPU:0")
OTHER = "/job:other/replica:0/task:0/device:CPU:0"
FLOAT, DOUBLE, STRING, RESOURCE, VARIANT = (
    as_dtype(t) for t in ("float32", "float64", "string", "resource", "variant")
)

# Kernels of these tests: op, device type, dtypes of T, priority.
KERNEL_TABLE = (
    *((op, "*", None, 0) for op in ("Const", "Identity", "VarHandleOp", "ReadVariableOp", "AssignVariableOp")),
    *((op, "*", None, 0) for op in ("FIFOQueueV2", "QueueSizeV2", "EmptyTensorList", "TensorListPushBack", "NoOp")),
    ("ResourceApplyMomentum", "*", None, 0),
    ("MatMul", "CPU", (FLOAT, DOUBLE), 0),
    ("MatMul", "GPU", (FLOAT,), 0),
    ("StringJoin", "CPU", None, 0),
    ("ReadFile", "CPU", None, 0),
    ("Reciprocal", "GPU", None, 0),
    ("Square", "CPU", None, 1),
    ("Square", "GPU", None, 0),
)


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> Iterator[None]:
    with kernels(KERNEL_TABLE):
        yield


@contextmanager
def kernels(table: Sequence[tuple[str, str, Any, int]]) -> Iterator[None]:
    """Replace the kernel registry with these kernels."""
    registry = KernelRegistry()
    for op, device, dtypes, priority in table:
        limits = {} if dtypes is None else {"T": frozenset(dtypes)}
        opens_files = op.endswith("File")
        registry.register(
            KernelDef(op, lambda binding: lambda: None, device, limits, priority=priority, opens_files=opens_files)
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constraints, "KERNELS", registry)
        patch.setattr(rejection, "KERNELS", registry)
        yield


def node(
    name: str,
    op: str = "Identity",
    *inputs: str,
    device: str = "",
    loc: Sequence[str] = (),
    line: int = 0,
    out: Any = FLOAT,
    **attrs: Any,
) -> Node:
    """Return a node that reads the first output of each input; "x:1" reads the second output of x."""
    if loc:
        attrs["_class"] = tuple(f"loc:@{name}" for name in loc)
    edges = tuple(Edge(n, int(port or 0)) for n, _, port in (i.partition(":") for i in inputs))
    outputs = (OutputSpec(out, None), OutputSpec(out, None))
    return Node(name, op, edges, attrs=attrs, outputs=outputs, device=device, source=SourceLine("user.py", line, "f"))


def groups_of(
    *nodes: Node, devices: Sequence[str] = ALL, soft: bool = False, files: frozenset[str] | None = None
) -> list[Group]:
    graph = ClientGraph({n.name: n for n in nodes}, 0, 0)
    return feasible_groups(graph, ClusterView(tuple(devices), soft, files=files))


def members(*nodes: Node, **options: Any) -> list[set[str]]:
    return [set(group.members) for group in groups_of(*nodes, **options)]


def devices(*nodes: Node, **options: Any) -> dict[str, tuple[str, ...]]:
    return {name: group.devices for group in groups_of(*nodes, **options) for name in group.members}


def refused(*nodes: Node, kind: type[OpError] = InvalidArgumentError, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        groups_of(*nodes, **options)
    assert type(caught.value) is kind
    return str(caught.value)


# -- devices of a single node ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "possible"),
    [
        ("", (GPU0, CPU0, CPU1)),  # GPUs first, then as the cluster lists them
        ("/cpu:1", (CPU1,)),
        ("/device:CPU:*", (CPU0, CPU1)),
        ("/gpu", (GPU0,)),
        ("/device:*:0", (GPU0, CPU0)),
        ("/job:localhost/task:0", (GPU0, CPU0, CPU1)),
        ("/job:localhost/cpu:1", (CPU1,)),
    ],
)
def test_a_request_leaves_the_devices_that_fit(request_: str, possible: tuple[str, ...]) -> None:
    assert groups_of(node("a", device=request_)) == [Group(("a",), possible)]


@pytest.mark.parametrize(
    ("op", "dtype", "possible"),
    [
        ("MatMul", FLOAT, (GPU0, CPU0, CPU1)),
        ("MatMul", DOUBLE, (CPU0, CPU1)),
        ("StringJoin", STRING, (CPU0, CPU1)),
        ("Reciprocal", FLOAT, (GPU0,)),
        ("Square", FLOAT, (CPU0, CPU1, GPU0)),  # its kernel for the CPU has the higher priority
        ("Merge", FLOAT, ALL),  # no kernel anywhere, and none needed
    ],
)
def test_a_device_needs_a_kernel_for_the_op_and_its_dtypes(op: str, dtype: Any, possible: tuple[str, ...]) -> None:
    assert devices(node("a", op, T=dtype))["a"] == possible


@pytest.mark.parametrize(
    ("files", "possible"),
    [
        (None, (WORKER, PS, OTHER)),
        (frozenset(), (WORKER, PS, OTHER)),  # any device; the kernel reports the error at run time
        ({WORKER, PS}, (WORKER,)),  # the target's own devices come first
        ({PS, OTHER}, (PS, OTHER)),
    ],
)
def test_file_ops_are_limited_to_devices_that_may_open_files(files: Any, possible: tuple[str, ...]) -> None:
    found = devices(
        node("file", "ReadFile", out=STRING),
        node("pinned", "ReadFile", out=STRING, device="/job:other"),
        node("text", "StringJoin", out=STRING),
        devices=(WORKER, PS, OTHER),
        files=files,
    )
    assert found == {"file": possible, "pinned": (OTHER,), "text": (WORKER, PS, OTHER)}


def test_nodes_of_an_op_with_other_dtypes_have_other_devices() -> None:
    found = devices(node("f", "MatMul", T=FLOAT), node("d", "MatMul", T=DOUBLE), node("g", "MatMul", T=FLOAT))
    assert found == {"f": (GPU0, CPU0, CPU1), "d": (CPU0, CPU1), "g": (GPU0, CPU0, CPU1)}


def test_a_string_node_does_not_keep_others_of_its_op_on_the_host() -> None:
    """A kernel for every device and dtype handles strings on the host only."""
    nodes = [node("text", "Const", dtype=STRING), node("number", "Const", dtype=FLOAT)]
    assert devices(*nodes) == {"text": (CPU0, CPU1), "number": (GPU0, CPU0, CPU1)}


def test_priorities_count_only_if_all_members_agree() -> None:
    agreed = devices(node("a", "Square", loc=["x"]), node("b", "Square", loc=["x"]), node("c", "Merge", loc=["x"]))
    assert agreed["a"] == (CPU0, CPU1, GPU0)
    for ops in (("Square", "Identity"), ("Identity", "Square")):
        mixed = devices(*(node(op, op, loc=["x"]) for op in ops))
        assert mixed["Square"] == (GPU0, CPU0, CPU1)


# -- colocation --------------------------------------------------------------------------------------------------------


def test_colocation_joins_through_chains() -> None:
    nodes = [node("a"), node("b", loc=["a"]), node("c"), node("d", loc=["b", "c"]), node("e")]
    assert members(*nodes) == [{"a", "b", "c", "d"}, {"e"}]


def test_groups_are_ordered_by_their_first_members() -> None:
    nodes = [node("a"), node("b"), node("c", loc=["a"]), node("d", loc=["b"])]
    assert [g.members for g in groups_of(*nodes)] == [("a", "c"), ("b", "d")]


def test_nodes_colocated_with_a_missing_node_stay_together() -> None:
    assert members(node("a", loc=["gone"]), node("b", loc=["other"]), node("c", loc=["gone"])) == [{"a", "c"}, {"b"}]


def test_a_colocation_with_itself_is_a_group_of_its_own() -> None:
    assert members(node("a", loc=["a"]), node("b")) == [{"a"}, {"b"}]


def test_other_classes_are_not_colocation() -> None:
    nodes = [node("a"), Node("b", "NoOp", attrs={"_class": ("a", "foo:@a")})]
    assert members(*nodes) == [{"a"}, {"b"}]


@pytest.mark.parametrize("through", ["Identity", "Switch", "Enter", "Merge", "Exit", "NextIteration"])
def test_users_of_a_handle_are_colocated_through_control_flow(through: str) -> None:
    nodes = [
        node("v", "VarHandleOp", out=RESOURCE),
        node("x", "Const"),
        node("h", through, "v", *(["x"] if through == "Switch" else []), out=RESOURCE),
        node("read", "ReadVariableOp", "h:1"),
        node("y", "MatMul", "read", "read", T=FLOAT),
    ]
    groups = members(*nodes)
    assert {"v", "h", "read"} <= groups[0]
    assert {"y"} in groups


def test_an_op_on_two_handles_joins_them() -> None:
    nodes = [
        node("v", "VarHandleOp", out=RESOURCE),
        node("m", "VarHandleOp", out=RESOURCE),
        node("w", "VarHandleOp", out=RESOURCE),
        node("g", "Reciprocal"),
        node("update", "ResourceApplyMomentum", "v", "m", "g"),
    ]
    assert members(*nodes) == [{"v", "m", "update"}, {"w"}, {"g"}]


def test_list_ops_are_placed_with_their_list() -> None:
    nodes = [
        node("l", "EmptyTensorList", out=VARIANT, device="/cpu:1"),
        node("x", "Reciprocal"),
        node("push", "TensorListPushBack", "l", "x", out=VARIANT),
    ]
    assert members(*nodes) == [{"l", "push"}, {"x"}]
    assert devices(*nodes)["push"] == (CPU1,)


def test_a_fed_handle_keeps_its_readers_together() -> None:
    nodes = [
        Node("_arg_0", "_Arg", attrs={"T": RESOURCE, "index": 0}, outputs=(OutputSpec(RESOURCE, ()),)),
        node("a", "ReadVariableOp", "_arg_0", device="/cpu:1"),
        node("b", "QueueSizeV2", "_arg_0"),
    ]
    assert devices(*nodes) == {"_arg_0": (CPU1,), "a": (CPU1,), "b": (CPU1,)}


def test_a_group_may_use_devices_common_to_its_members() -> None:
    found = devices(
        node("a", "StringJoin", loc=["x"]), node("b", loc=["x"], device="/device:*:1"), node("c", loc=["x"])
    )
    assert set(found.values()) == {(CPU1,)}
    found = devices(node("a", loc=["x"], device="/device:CPU:*"), node("b", loc=["x"], device="/device:*:0"))
    assert set(found.values()) == {(CPU0,)}


# -- control flow ------------------------------------------------------------------------------------------------------


def loop(device: str = "", **asks: str) -> list[Node]:
    """Return the nodes of `while cond(i): i = body(i)`; `asks` maps node names to device requests."""

    def at(name: str, op: str, *inputs: str) -> Node:
        return node(name, op, *inputs, device=asks.get(name, device), T=FLOAT)

    return [
        at("start", "MatMul"),
        at("limit", "MatMul"),
        at("enter", "Enter", "start"),
        at("invariant", "Enter", "limit"),
        at("merge", "Merge", "enter", "next"),
        at("less", "Square", "merge", "invariant"),
        at("cond", "LoopCond", "less"),
        at("switch", "Switch", "merge", "cond"),
        at("body", "Square", "switch:1"),
        at("next", "NextIteration", "body"),
        at("exit", "Exit", "switch"),
        at("after", "Square", "exit"),
    ]


VARIABLE = {"enter", "merge", "switch", "next", "exit"}


def test_loop_variable_nodes_are_colocated_but_the_body_is_free() -> None:
    nodes = loop()
    assert members(*nodes) == [{"start"}, {"limit"}, VARIABLE, {"invariant", "less"}, {"cond"}, {"body"}, {"after"}]


def test_a_loop_variable_is_placed_where_its_loop_was_built() -> None:
    nodes = loop("/cpu:1", body="/cpu:0")
    found = devices(*nodes)
    assert {found[name] for name in VARIABLE} == {(CPU1,)}
    assert found["body"] == (CPU0,)
    assert found["after"] == (CPU1,)


def test_request_of_a_merge_wins_within_its_loop_variable() -> None:
    nodes = loop(enter="/cpu:0", merge="/cpu:1")
    found = devices(*nodes)
    assert {found[name] for name in VARIABLE} == {(CPU1,)}


def test_a_switch_follows_its_data_despite_its_own_request() -> None:
    nodes = [
        node("x", "Reciprocal"),
        node("p", "StringJoin"),
        node("switch", "Switch", "x", "p", device="/cpu:1"),
        node("then", "StringJoin", "switch:1"),
        node("merge", "Merge", "switch", "then", device="/cpu:1"),
    ]
    found = devices(*nodes)
    assert found["switch"] == found["x"] == (GPU0,)
    assert found["merge"] == (CPU1,)


def test_request_of_a_switch_does_not_move_its_data() -> None:
    found = devices(node("x"), node("p"), node("switch", "Switch", "x", "p", device="/cpu:1"))
    assert found["switch"] == found["x"] == (GPU0, CPU0, CPU1)


def test_a_switch_keeps_its_request_if_its_data_is_everywhere() -> None:
    nodes = [
        arg(0),
        node("constant", "Const"),
        node("x", "Reciprocal"),
        node("invariant", "Enter", "x", is_constant=True),
        node("p", "StringJoin"),
        *(
            node(f"switch_{source}", "Switch", source, "p", device="/cpu:1")
            for source in ("_arg_0", "constant", "invariant")
        ),
        *(node(f"on_gpu_{source}", "Reciprocal", source) for source in ("_arg_0", "constant", "invariant")),
    ]
    found = devices(*nodes)
    assert found["switch__arg_0"] == found["switch_constant"] == found["switch_invariant"] == (CPU1,)


def test_colocation_overrides_the_placement_of_control_flow() -> None:
    nodes = [
        node("x", "Reciprocal"),
        node("c", "StringJoin"),
        node("p"),
        node("switch", "Switch", "x", "p", loc=["c"]),
    ]
    found = devices(*nodes)
    assert found["switch"] == found["c"] == (CPU0, CPU1)
    assert found["x"] == (GPU0,)


def test_control_flow_on_an_unknown_device_is_rejected() -> None:
    nodes = [node("x"), node("merge", "Merge", "x", "x", device="/gpu:9", line=4)]
    assert "node 'merge' asks for /device:GPU:9 (user.py:4 in f)" in refused(*nodes)
    assert devices(*nodes, soft=True)["merge"] == ALL


# -- feeds, fetches, constants -----------------------------------------------------------------------------------------


def arg(index: int) -> Node:
    return Node(f"_arg_{index}", "_Arg", attrs={"index": index}, outputs=(OutputSpec(FLOAT, ()),), device="/gpu:0")


def retval(index: int, source: str) -> Node:
    return Node(f"_retval_{index}", "_Retval", (Edge(source, 0),), attrs={"index": index})


def test_a_feed_joins_its_first_reader_and_a_fetch_its_source() -> None:
    nodes = [
        arg(0),
        arg(1),
        node("a", "StringJoin", "_arg_0", device="/cpu:1"),
        node("b", "Reciprocal", "_arg_0"),
        retval(0, "a"),
        retval(1, "b"),
        retval(2, "_arg_1"),
    ]
    assert members(*nodes) == [{"_arg_0", "a", "_retval_0"}, {"_arg_1", "_retval_2"}, {"b", "_retval_1"}]
    assert devices(*nodes)["_arg_0"] == (CPU1,)


def test_a_constant_joins_readers_of_one_group() -> None:
    nodes = [
        node("c", "Const"),
        node("shared", "Const"),
        node("asked", "Const", device="/cpu:0"),
        node("bound", "Const", loc=["z"]),
        node("a", "StringJoin", "c", "shared", "asked", "bound", loc=["g"]),
        node("b", "StringJoin", "c", loc=["g"]),
        node("d", "StringJoin", "shared"),
    ]
    assert members(*nodes) == [{"c", "a", "b"}, {"shared"}, {"asked"}, {"bound"}, {"d"}]


def test_a_constant_does_not_keep_its_reader_from_a_device() -> None:
    with kernels([("Const", "CPU", None, 0), *(row for row in KERNEL_TABLE if row[0] != "Const")]):
        found = devices(
            node("c", "Const"), node("a", "Identity", "c"), node("d", "Const"), node("e", "StringJoin", "d")
        )
    assert found["a"] == (GPU0, CPU0, CPU1)
    assert found["c"] == (CPU0, CPU1)
    assert found["d"] == found["e"] == (CPU0, CPU1)


# -- conflicting requests ----------------------------------------------------------------------------------------------


def test_users_of_a_handle_follow_its_request() -> None:
    nodes = [
        node("v", "VarHandleOp", out=RESOURCE, device="/cpu:1"),
        node("read", "ReadVariableOp", "v", device="/gpu:0"),
    ]
    assert set(devices(*nodes).values()) == {(CPU1,)}
    assert set(devices(*reversed(nodes)).values()) == {(CPU1,)}, "in whatever order they come"


def test_a_handle_without_a_request_follows_its_users() -> None:
    nodes = [node("v", "VarHandleOp", out=RESOURCE), node("read", "ReadVariableOp", "v", device="/cpu:1")]
    assert set(devices(*nodes).values()) == {(CPU1,)}
    text = refused(*nodes, node("other", "ReadVariableOp", "v", device="/cpu:0"))
    assert "'read' and 'other' must be together and ask for different devices: /device:CPU:1 and /device:CPU:0" in text


def test_colocated_handles_with_different_requests_are_rejected() -> None:
    nodes = [
        node("v", "VarHandleOp", out=RESOURCE, device="/cpu:0", line=1),
        node("m", "VarHandleOp", out=RESOURCE, device="/cpu:1", line=2),
        node("update", "ResourceApplyMomentum", "v", "m", line=3),
    ]
    text = refused(*nodes)
    assert "nodes 'v' and 'm' must be together and ask for different devices: /device:CPU:0 and /device:CPU:1" in text
    assert f"{CPU0}: node 'm' asks for /device:CPU:1 (user.py:2 in f)" in text
    assert f"{CPU1}: node 'v' asks for /device:CPU:0 (user.py:1 in f)" in text
    assert f"{GPU0}: node 'v' asks for /device:CPU:0 (user.py:1 in f)" in text
    assert "'update' (op ResourceApplyMomentum) (user.py:3 in f)" in text
    assert "allow_soft_placement" in text
    assert set(devices(*nodes, soft=True).values()) == {(CPU0, CPU1)}, "the index is given up, the type is kept"


# -- soft placement ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "op", "possible"),
    [
        ("/gpu:7", "Identity", (GPU0, CPU0, CPU1)),
        ("/cpu:0", "Reciprocal", (GPU0,)),
        ("/device:TPU:0", "StringJoin", (CPU0, CPU1)),
        ("/cpu:1", "StringJoin", (CPU1,)),  # nothing to give up
    ],
)
def test_soft_placement_drops_type_and_index_as_a_last_resort(
    request_: str, op: str, possible: tuple[str, ...]
) -> None:
    assert devices(node("a", op, device=request_), soft=True)["a"] == possible


@pytest.mark.parametrize("request_", ["/job:chief/gpu:0", "/task:3", "/replica:2/cpu:0"])
def test_soft_placement_keeps_the_task(request_: str) -> None:
    text = refused(node("a", device=request_), soft=True)
    assert "allow_soft_placement" not in text, "it is what did not help"


def test_soft_placement_stays_in_the_task() -> None:
    found = devices(node("a", device="/job:worker/gpu:3"), devices=(PS, WORKER), soft=True)
    assert found["a"] == (WORKER,)


def test_soft_placement_of_conflicting_members() -> None:
    def pair(one: str, other: str) -> set[tuple[str, ...]]:
        nodes = node("a", device=one, loc=["x"]), node("b", device=other, loc=["x"])
        assert "must be together" in refused(*nodes)
        return set(devices(*nodes, soft=True).values())

    assert pair("/cpu:0", "/cpu:1") == {(CPU0, CPU1)}
    assert pair("/cpu:0", "/gpu:0") == {(GPU0, CPU0, CPU1)}
    assert pair("/cpu:0", "/device:GPU:*") == {(GPU0, CPU0, CPU1)}


def test_later_members_do_not_undo_soft_placement() -> None:
    nodes = [node(name, device=f"/cpu:{i}", loc=["x"]) for name, i in (("a", 0), ("b", 1), ("c", 0))]
    assert set(devices(*nodes, soft=True).values()) == {(CPU0, CPU1)}


@pytest.mark.parametrize("soft", [False, True])
def test_members_in_different_tasks_are_always_rejected(soft: bool) -> None:
    nodes = node("a", device="/job:ps", loc=["x"]), node("b", device="/job:worker/cpu:0", loc=["x"])
    text = refused(*nodes, devices=(PS, WORKER), soft=soft)
    assert "ask for different devices: /job:ps and /job:worker/device:CPU:0" in text
    assert "allow_soft_placement" not in text


# -- error messages ----------------------------------------------------------------------------------------------------


def test_request_error_lists_every_device_with_its_reason() -> None:
    text = refused(node("a", device="/gpu:7", line=12))
    assert text.splitlines() == [
        "cannot assign a device for operation 'a'",
        *(f"  {device}: node 'a' asks for /device:GPU:7 (user.py:12 in f)" for device in ALL),
        "  expected: one of these devices, or SessionConfig(allow_soft_placement=True)",
        "  actual:   /device:GPU:7",
        "  node:     'a' (op Identity)",
        "  created:  user.py:12 in f",
    ]


CLIENT = "/job:client/replica:0/task:0/device:CPU:0"


def of_a_cluster(*nodes: Node) -> list[str]:
    """Return the error lines for these nodes in a client of a cluster."""
    with pytest.raises(InvalidArgumentError) as caught:
        feasible_groups(
            ClientGraph({n.name: n for n in nodes}, 0, 0),
            ClusterView((PS, WORKER, CLIENT), home=frozenset({CLIENT}), own=CLIENT),
        )
    return str(caught.value).splitlines()


@pytest.mark.parametrize("wrong", ["/job:chief", "/job:worker/task:3"])
def test_unknown_task_error_lists_the_tasks_of_the_cluster(wrong: str) -> None:
    """The error lists each device once, without the client's own device: ordinary nodes cannot run there.

    It does not suggest soft placement, which would not help.
    """
    assert of_a_cluster(node("a", device=wrong, line=3)) == [
        "cannot assign a device for operation 'a'",
        *(f"  {device}: node 'a' asks for {wrong} (user.py:3 in f)" for device in (PS, WORKER)),
        "  expected: a task of the cluster: /job:ps/task:0, /job:worker/task:0",
        f"  actual:   {wrong}",
        "  node:     'a' (op Identity)",
        "  created:  user.py:3 in f",
    ]


def test_unknown_task_error_without_a_cluster_suggests_a_target() -> None:
    text = refused(node("a", device="/job:ps"))
    assert "expected: a device of /job:localhost/task:0; " in text
    assert "Session('aioflow://HOST:PORT')" in text
    assert "allow_soft_placement" not in text


def test_py_func_error_identifies_the_clients_device() -> None:
    with kernels([*KERNEL_TABLE, ("PyFunc", "CPU", None, 0)]):
        lines = of_a_cluster(node("a", "PyFunc", device="/job:ps"))
    assert any(line.startswith(f"  {CLIENT} (this program, ") and "asks for /job:ps" in line for line in lines)
    assert any(line.startswith(f"  {PS}: ") and "calls a Python function" in line for line in lines)


def test_group_error_names_the_rejecting_member_per_device() -> None:
    text = refused(
        node("x", "MatMul", T=DOUBLE, loc=["x"], line=1),
        node("y", "Reciprocal", loc=["x"], T=FLOAT, line=2),
        node("z", device="/device:*:0", loc=["x"], line=3),
        kind=UnimplementedError,
    )
    assert text.splitlines()[:8] == [
        "cannot assign a device for 3 operations that must be together, 'x' and others",
        f"  {CPU0}: no kernel of op Reciprocal for CPU with T=float32 (node 'y', user.py:2 in f)",
        f"  {CPU1}: node 'z' asks for /device:*:0 (user.py:3 in f)",
        f"  {GPU0}: no kernel of op MatMul for GPU with T=float64 (node 'x', user.py:1 in f)",
        "  together:",
        "    'z' (op Identity) asks for /device:*:0 (user.py:3 in f)",
        "    'x' (op MatMul) (user.py:1 in f)",
        "    'y' (op Reciprocal) (user.py:2 in f)",
    ]


def test_the_first_group_without_a_device_is_reported() -> None:
    nodes = [node("a", loc=["z"]), node("b", device="/gpu:8"), node("c", device="/gpu:9", loc=["z"])]
    text = refused(*nodes)
    assert "GPU:9" in text
    assert "GPU:8" not in text


def test_the_error_names_at_most_eight_members() -> None:
    nodes = [node(f"n{i}", loc=["x"]) for i in range(20)]
    text = refused(*nodes, node("last", device="/gpu:5", loc=["x"]))
    assert "    'last' (op Identity) asks for /device:GPU:5" in text
    assert "'n6'" in text
    assert "'n7'" not in text
    assert "and 13 more" in text


def test_missing_kernel_error_lists_the_existing_kernels() -> None:
    with pytest.raises(UnimplementedError) as caught:
        groups_of(node("a", "MatMul", T=DOUBLE, device="/gpu:0"))
    error = caught.value
    assert (error.node, error.op_type) == ("a", "MatMul")
    assert "CPU (T in {float32, float64})" in error.expected
    assert error.actual == "GPU with {'T': 'float64'}"
    assert "no kernel of op LRN for CPU" in refused(node("a", "LRN"), kind=UnimplementedError, soft=True)


# -- against brute force -----------------------------------------------------------------------------------------------

_REQUESTS = ("", "", "", "/cpu:0", "/device:CPU:*", "/gpu:0", "/device:*:0", "/task:0")
_FITS = {
    "": set(ALL),
    "/cpu:0": {CPU0},
    "/device:CPU:*": {CPU0, CPU1},
    "/gpu:0": {GPU0},
    "/device:*:0": {CPU0, GPU0},
    "/task:0": set(ALL),
}
_RUNS = {"Identity": set(ALL), "StringJoin": {CPU0, CPU1}, "Reciprocal": {GPU0}, "Square": set(ALL), "NoOp": set(ALL)}


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_groups_and_devices_against_brute_force(seed: int, size: int) -> None:
    rng = random.Random(seed)
    names = [f"n{i}" for i in range(size)]
    nodes = [
        node(
            name,
            rng.choice(sorted(_RUNS)),
            *(f"n{rng.randrange(i)}" for _ in range(rng.randrange(3)) if i),
            device=rng.choice(_REQUESTS),
            loc=[rng.choice([*names, "gone"]) for _ in range(rng.choice((0, 0, 1, 1, 2)))],
        )
        for i, name in enumerate(names)
    ]
    together = {n.name: {n.name} | {c.removeprefix("loc:@") for c in n.attrs.get("_class", ())} for n in nodes}
    parts: list[set[str]] = []
    for names_of in together.values():  # merge overlapping sets
        touching = [p for p in parts if p & names_of]
        parts = [p for p in parts if not p & names_of] + [names_of.union(*touching)]
    by_name = {n.name: n for n in nodes}
    expected: dict[str, set[str]] = {}
    for part in parts:
        inside = [by_name[name] for name in part if name in by_name]
        possible = set(ALL).intersection(*(_FITS[n.device] & _RUNS[n.op] for n in inside))
        expected.update({n.name: possible for n in inside})
    if not all(expected.values()):
        with pytest.raises((InvalidArgumentError, UnimplementedError)) as caught:
            groups_of(*nodes)
        text = str(caught.value)
        assert all(f"  {device}: " in text for device in ALL)
        assert not expected[str(caught.value.node)]
        return
    groups = groups_of(*nodes)
    assert {name: set(group.devices) for group in groups for name in group.members} == expected
    assert {frozenset(group.members) for group in groups} == {frozenset(p & set(names)) for p in parts}
