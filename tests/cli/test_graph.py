"""`aioflow graph`: models as pictures, in SVG, for Graphviz, and as JSON."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import onnx
import pytest
from onnx import TensorProto, helper

import aioflow as af
from aioflow.cli import main
from aioflow.train import write_graph

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def trained(tmp_path: Path) -> str:
    """Save a layer on each of two devices, their loss, and a training step."""
    with af.Graph().as_default() as graph:
        h = af.placeholder("float32", [None, 8], name="x")
        for i in range(2):
            with af.name_scope(f"layer{i}"), af.device(f"/cpu:{i}"):
                h = af.nn.relu(af.matmul(h, af.Variable(af.ones([8, 8]), name="w")), name="relu")
        with af.name_scope("train"):
            af.train.GradientDescentOptimizer(0.1).minimize(af.reduce_mean(h, name="loss"))
    return write_graph(graph, tmp_path, "model <1>.pbtxt")


@pytest.fixture
def branching(tmp_path: Path) -> str:
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [], name="x")
        _, s = af.while_loop(lambda i, a: i < 9, lambda i, a: (i + 1, a * x), [af.constant(0), x], name="loop")
        af.cond(s > 3.0, lambda: af.sqrt(s), lambda: -s, name="choice")
    return write_graph(graph, tmp_path, "branching.pb", as_text=False)


@pytest.fixture
def foreign(tmp_path: Path) -> str:
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], name="/block/Relu"),
        helper.make_node("Add", ["h", "x"], ["y"], name="/block/Add"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 10
    onnx.save(model, tmp_path / "model.onnx")
    return str(tmp_path / "model.onnx")


def drawn(model: str, *options: str) -> ElementTree.Element:
    path = Path(model).parent / "graph.svg"
    assert main(["graph", model, "-o", str(path), *options]) == 0
    return ElementTree.parse(path).getroot()


def as_json(model: str, *options: str) -> dict[str, Any]:
    path = Path(model).parent / "graph.json"
    assert main(["graph", model, "-o", str(path), *options]) == 0
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def titles(picture: ElementTree.Element) -> list[str]:
    """Return the title of each box."""
    return [group.findall(f"{SVG}text")[0].text or "" for group in picture.findall(f"{SVG}g")]


def numbers(element: ElementTree.Element, *names: str) -> list[float]:
    return [float(element.attrib[name]) for name in names]


@pytest.mark.parametrize("name", ["trained", "branching", "foreign"])
def test_boxes_are_within_the_picture_and_do_not_overlap(name: str, request: pytest.FixtureRequest) -> None:
    picture = drawn(request.getfixturevalue(name))
    width, height = numbers(picture, "width", "height")
    boxes = [numbers(g.findall(f"{SVG}rect")[-1], "x", "y", "width", "height") for g in picture.findall(f"{SVG}g")]
    assert len(boxes) > 2
    for x, y, wide, high in boxes:
        assert 0 <= x <= x + wide <= width
        assert 0 <= y <= y + high <= height
        assert sum(a < x + wide and x < a + c and b < y + high and y < b + d for a, b, c, d in boxes) == 1, "itself"
    for path in picture.findall(f"{SVG}path"):
        points = re.findall(r"(-?[\d.]+),(-?[\d.]+)", path.attrib["d"])
        assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in points)


def test_devices_have_colours(trained: str) -> None:
    picture = drawn(trained)
    legend = [text.text for text in picture.findall(f"{SVG}text")]
    assert legend == ["model <1>.pbtxt", "/device:CPU:0", "/device:CPU:1", "+N: reads N constants and weights"]
    fills = {
        (group.findall(f"{SVG}title")[0].text or "").split("\n")[0]: group.findall(f"{SVG}rect")[-1].attrib["fill"]
        for group in picture.findall(f"{SVG}g")
    }
    assert fills["layer0/relu"] != fills["layer1/relu"]


def test_depth_and_fetches(trained: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole = as_json(trained, "--depth", "0")
    shallow = as_json(trained, "--depth", "1", "--fetch", "layer1/relu:0")
    assert [box["name"] for box in shallow["boxes"]] == ["x", "layer0", "layer1/MatMul", "layer1/relu"]
    assert shallow["boxes"][1]["ops"] == {"MatMul": 1, "Relu": 1}
    assert shallow["boxes"][1]["weights"] == 1
    assert shallow["edges"][0] == {"from": "x", "to": "layer0", "tensors": ["x:0"]}
    assert len(whole["boxes"]) > len(shallow["boxes"])
    assert all(box["nodes"] == 1 for box in whole["boxes"])
    said = capsys.readouterr().out.splitlines()[-1]
    assert re.match(
        r"5 of \d+ nodes of the loaded graph, in 4 boxes, 3 edges, scopes opened to depth 1: written to ", said
    )


def test_loop_is_drawn_with_its_back_edge(branching: str) -> None:
    edges = {(e["from"].rpartition("/")[2], e["to"].rpartition("/")[2]) for e in as_json(branching)["edges"]}
    assert ("NextIteration", "Merge") in edges
    assert "LoopCond" in titles(drawn(branching))


def test_an_onnx_model(foreign: str) -> None:
    assert titles(drawn(foreign)) == ["Placeholder", "Relu", "AddV2"]


@pytest.mark.parametrize("options", [(), ("--all",), ("--as", "run"), ("--depth", "1")])
def test_output_of_a_model_has_its_name(foreign: str, options: tuple[str, ...]) -> None:
    """The node of the output is `/block/Add`."""
    second = [group.findall(f"{SVG}text")[1].text for group in drawn(foreign, *options).findall(f"{SVG}g")]
    assert (second[0], second[-1]) == ("input · x", "output · y")
    assert [box["outputs"] for box in as_json(foreign, *options)["boxes"]][-1] == ["y"]


def test_counts_of_nodes_state_what_is_counted(foreign: str, capsys: pytest.CaptureFixture[str]) -> None:
    picture = str(Path(foreign).with_name("g.svg"))
    for command, says in (
        (("inspect", foreign), "2 nodes of 2 ops in the file"),
        (("graph", foreign, "-o", picture), "3 of 3 nodes of the loaded graph, in 3 boxes"),
        (("graph", foreign, "-o", picture, "--as", "run"), "nodes that run, after optimization, in 3 boxes"),
        (("explain", foreign), "nodes after optimization, on 1 device"),
        (("explain", foreign, "--unoptimized"), "nodes without optimization, on 1 device"),
    ):
        assert main(command) == 0
        assert says in capsys.readouterr().out, command


@pytest.mark.skipif(sys.platform == "win32", reason="no file has such a name there")
def test_file_may_have_any_name(trained: str) -> None:
    odd = Path(trained).with_name('odd\x01\n<&"]]>.pbtxt')
    odd.write_bytes(Path(trained).read_bytes())
    assert titles(drawn(str(odd))) == titles(drawn(trained))


def test_graph_writes_a_dot_file(trained: str) -> None:
    path = Path(trained).parent / "graph.dot"
    assert main(["graph", trained, "-o", str(path), "--depth", "1", "--fetch", "layer1/relu"]) == 0
    text = path.read_text()
    assert text.startswith('digraph "model <1>.pbtxt" {')
    assert '"x" -> "layer0/";' in text
    assert text.count(" -> ") == 3
    assert text.count("fillcolor=") == 4, "of all nodes, and of three that ask for a device"


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["-o", "x.png"], 2, "has an unknown suffix; expected one of .svg, .dot, .json"),
        (["-o", "x.svg", "--fetch", "nobody"], 2, "no such node: nobody"),
        (["-o", "x.svg", "--signature", "nobody"], 2, "no such signature"),
    ],
)
def test_mistakes_are_one_line(
    trained: str, options: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = main(["graph", trained, *options])
    except SystemExit as ended:
        found = int(str(ended.code))
    assert found == status
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.fixture
def normalized(tmp_path: Path) -> str:
    """Save a convolution, its normalization in inference, and a chain of elementwise nodes."""
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [1, 64, 64, 3], name="x")
        h = af.nn.conv2d(x, af.ones([3, 3, 3, 4]), padding="SAME", name="filtered")
        one, zero = af.ones([4]), af.zeros([4])
        h, _, _ = af.nn.fused_batch_norm(h, one, zero, zero, one, is_training=False, name="normal")
        af.nn.relu(h + 0.0 * 1.0, name="y")
    return write_graph(graph, tmp_path, "normalized.pb", as_text=False)


def ops(document: dict[str, Any]) -> set[str]:
    return {op for box in document["boxes"] for op in box["ops"]}


def test_graph_that_runs_is_optimized(normalized: str) -> None:
    assert "FusedBatchNormV3" in ops(as_json(normalized))
    assert "FusedBatchNormV3" in ops(as_json(normalized, "--as", "run"))
    folded = as_json(normalized, "--as", "run", "--fold-batch-norm")
    assert "FusedBatchNormV3" not in ops(folded)
    roles = {box["role"]: box["name"] for box in folded["boxes"]}
    assert (roles["input"], roles["output"]) == ("x", "y"), "feeds and fetches keep their names"
    assert any(edge["from"] == "x" for edge in folded["edges"])


def test_part_of_an_engine_is_one_scope(normalized: str) -> None:
    pytest.importorskip("onnxruntime")
    part = "onnxruntime 1"
    closed = as_json(normalized, "--as", "run", "--delegate", "onnxruntime", "--depth", "1")
    assert part in {box["name"] for box in closed["boxes"]}
    opened = as_json(normalized, "--as", "run", "--delegate", "onnxruntime", "--depth", "0")
    assert f"{part}/filtered" in {box["name"] for box in opened["boxes"]}


def test_loops_and_branches_that_run_are_drawn(branching: str) -> None:
    loaded, running = as_json(branching), as_json(branching, "--as", "run")
    assert {"Merge", "NextIteration"} <= ops(loaded) & ops(running)


def test_picture_of_a_step_has_no_other_nodes(branching: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", branching, "-o", str(Path(branching).parent / "g.svg"), "--as", "run", "--all"]) == 2
    assert "--as loaded" in capsys.readouterr().err


def test_repeated_block_is_opened_by_its_name(tmp_path: Path) -> None:
    with af.Graph().as_default() as graph:
        h = af.placeholder("float32", [8], name="x")
        for number in range(30):
            h = af.tanh(af.nn.relu(h, name=f"r{number}"), name=f"t{number}")
        af.square(h, name="y")
    model = write_graph(graph, tmp_path, "deep.pb", as_text=False)
    (closed,) = [box for box in as_json(model)["boxes"] if box["role"] == "scope"]
    assert closed["title"] == "30 × block"
    opened = as_json(model, "--open", closed["name"])["boxes"]
    assert "block 30 of 30" in {box["title"] for box in opened}
