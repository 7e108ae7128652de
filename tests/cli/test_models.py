"""`aioflow run` and `aioflow inspect`: models of every format, recognized by their contents; errors in one line."""

from __future__ import annotations

import asyncio
import json
import os
import re
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aioflow as af
from aioflow.cli import main, tables
from aioflow.cli.estimates import estimated
from aioflow.interop.safetensors.weights import save as save_weights
from aioflow.saved import Signature, load, save
from aioflow.saved.opening import AIOFLOW, GRAPH, ONNX, SAVED_MODEL, WEIGHTS, kind_of, open_model

WEIGHT = np.arange(6, dtype=np.float32).reshape(3, 2)
GIVEN = np.array([[1, 2, 3]], np.float32)
WANTED = np.array([[16, 22]], np.float32)


async def _save(folder: Path) -> None:
    with af.Graph().as_default():
        x = af.placeholder("float32", [None, 3], name="x")
        a, b = (af.placeholder("float32", [], name=name) for name in "ab")
        w = af.Variable(WEIGHT, name="w")
        y = af.matmul(x, w, name="y")
        text = af.string_join([af.constant("a"), af.constant("b")], name="text")
        calls = {
            "serving_default": Signature({"x": x}, {"y": y}),
            "sum": Signature({"a": a, "b": b}, {"sum": af.add(a, b), "difference": af.subtract(a, b)}),
            "text": Signature({}, {"text": text}),
        }
        async with af.Session() as session:
            await session.run(w.initializer)
            await save(session, folder, calls)


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    asyncio.run(_save(tmp_path / "ours"))
    return tmp_path / "ours"


async def _save_as_theirs(folder: Path) -> None:
    with af.Graph().as_default():
        x = af.placeholder("float32", [None, 3], name="x")
        w = af.Variable(WEIGHT, name="w")
        async with af.Session() as session:
            await session.run(w.initializer)
            y = af.matmul(x, w, name="y")
            await af.interop.tensorflow.save_saved_model(session, folder, Signature({"x": x}, {"y": y}))


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    asyncio.run(_save_as_theirs(tmp_path / "theirs"))
    return tmp_path / "theirs"


def _onnx(path: Path, *more: Any, outputs: tuple[str, ...] = ("y",)) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])
    out = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product"), *more]
    graph = helper.make_graph(nodes, "g", [x], out, [numpy_helper.from_array(WEIGHT, "w")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, producer_name="somebody", ir_version=8, opset_imports=opsets), path)
    return path


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    return _onnx(tmp_path / "model.bin")  # the file name does not show the format


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [None, 3], name="x")
        af.matmul(x, af.constant(WEIGHT, name="w"), name="y")
    return Path(af.train.write_graph(graph, tmp_path, "frozen"))


def output(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


# ── format detection ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_format_is_recognized_by_the_contents(ours: Path, foreign: Path, frozen: Path, tmp_path: Path) -> None:
    with af.Graph().as_default() as graph:
        af.constant(1.0)
    for name, as_text in (("bytes", False), ("text", True)):
        assert kind_of(af.train.write_graph(graph, tmp_path, name, as_text)) is GRAPH
    (tmp_path / "json").write_text(graph.as_graph_def().to_json())
    (tmp_path / "compact").write_bytes(graph.as_graph_def().to_bytes())
    asyncio.run(save_weights(tmp_path / "weights", {"w": WEIGHT}))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "saved_model.pb").write_bytes(b"\x08\x01\x12\x00")
    kinds = {
        ours: AIOFLOW,
        ours / "aioflow.json": AIOFLOW,
        ours / "weights.safetensors": WEIGHTS,
        foreign: ONNX,
        frozen: GRAPH,
        tmp_path / "json": GRAPH,
        tmp_path / "compact": GRAPH,
        tmp_path / "weights": WEIGHTS,
        tmp_path / "empty": SAVED_MODEL,
        tmp_path / "empty" / "saved_model.pb": SAVED_MODEL,
    }
    assert {path: kind_of(path) for path in kinds} == kinds


@pytest.mark.parametrize("command", ["run", "inspect"])
@pytest.mark.parametrize("content", [b"", b"hello\n", b"\x89PNG\r\n\x1a\n", b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x7f"])
def test_file_without_a_model_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, content: bytes
) -> None:
    (tmp_path / "file").write_bytes(content)
    assert main([command, str(tmp_path / "file")]) == 2
    assert "not a model in a known format" in refusal(capsys)


@pytest.mark.parametrize("command", ["run", "inspect"])
@pytest.mark.parametrize("missing", [1, 20, 100])
def test_truncated_onnx_model_is_reported_as_damaged(
    foreign: Path, capsys: pytest.CaptureFixture[str], command: str, missing: int
) -> None:
    foreign.write_bytes(foreign.read_bytes()[:-missing])
    assert main([command, str(foreign)]) == 2
    said = refusal(capsys)
    assert "not a model in a known format" not in said
    assert "expected: " in said
    assert "ModelProto" in said or "an ONNX model" in said


@pytest.mark.parametrize("command", ["run", "inspect"])
def test_missing_model_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([command, str(tmp_path / "none")]) == 2
    assert "there is no model" in refusal(capsys)
    assert main([command, str(tmp_path)]) == 2
    assert "a folder without any of these" in refusal(capsys)


# ── run ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("which", ["ours", "theirs", "foreign", "frozen"])
@pytest.mark.parametrize("how", ["x=[[1, 2, 3]]", "[[1, 2, 3]]", "x={}.npy", "{}.npy", "{}.npz", "x={}.npz"])
def test_run_accepts_every_format_and_form_of_inputs(
    which: str, how: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = request.getfixturevalue(which)
    np.save(tmp_path / "given.npy", GIVEN.astype(np.float64))
    np.savez(tmp_path / "given.npz", x=GIVEN)
    extra = ["--signature", "serving_default"] if which == "ours" else []
    result = tmp_path / "out.npz"
    inputs = how.format(tmp_path / "given")
    assert main(["run", str(model), "--inputs", inputs, "--output", str(result), *extra]) == 0
    shown = output(capsys)
    assert re.search(r"in +x +float32 +\[1, 3\]", shown)
    assert re.search(r"out +y +float32 +\[1, 2\] +min 16 +mean 19 +max 22 +16, 22", shown)
    with np.load(result) as found:
        np.testing.assert_array_equal(found["y"], WANTED)


def test_several_inputs_and_outputs(ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "results"
    arguments = ["run", str(ours), "--signature", "sum", "--inputs", "a=5", "b=3", "--output-folder", str(folder)]
    assert main(arguments) == 0
    assert {p.name: float(np.load(p)) for p in folder.iterdir()} == {"sum.npy": 8.0, "difference.npy": 2.0}
    np.savez(tmp_path / "both.npz", a=np.float32(1), b=np.float32(2))
    assert main(["run", str(ours), "--signature", "sum", "--inputs", str(tmp_path / "both.npz")]) == 0
    assert re.search(r"out +sum +float32 +\[\] +3$", output(capsys), re.MULTILINE)


def test_text_output_is_shown_and_written(ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(ours), "--signature", "text", "--output", str(tmp_path / "text.npy")]) == 0
    assert "'ab'" in output(capsys)
    assert np.load(tmp_path / "text.npy") == b"ab"


@pytest.mark.parametrize("output", ["--output=words.npz", "--output=words.npy", "--output-folder=words"])
def test_run_writes_strings_that_numpy_loads_without_pickle(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = np.array([["a", ""], ["bcd", "é"]])
    with af.Graph().as_default() as graph:
        af.identity(af.constant(words), name="words")
    af.train.write_graph(graph, tmp_path, "graph", as_text=False)
    assert main(["run", "graph", output]) == 0
    [file] = [path for path in tmp_path.rglob("*") if path.suffix in (".npy", ".npz")]
    found = np.load(file)  # arrays of objects would raise
    if file.suffix == ".npz":
        [found] = found.values()
    assert found.dtype.kind == "S"
    np.testing.assert_array_equal(np.char.decode(found, "utf-8"), words)


def test_run_writes_outputs_named_like_parameters_of_savez(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with af.Graph().as_default() as graph:
        af.identity(af.constant([1.0, 2.0]), name="file")
        af.identity(af.constant([3.0]), name="allow_pickle")
    af.train.write_graph(graph, tmp_path, "graph", as_text=False)
    assert main(["run", "graph", "--output=out.npz"]) == 0
    with np.load("out.npz") as found:
        assert {name: found[name].tolist() for name in found} == {"file": [1.0, 2.0], "allow_pickle": [3.0]}


def test_run_fills_inputs_and_times_steps(foreign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(foreign), "--fill", "ones", "--shape", "x=4,3", "--repeat", "7"]) == 0
    shown = output(capsys)
    assert re.search(r"out +y +float32 +\[4, 2\]", shown)
    assert re.search(r"^7 steps: median .+ a second$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--inputs", "a=1"], "inputs are missing: b"),
        (["--inputs", "a=1", "b=2", "a=3"], "'a' is given twice"),
        (["--inputs", "c=1"], "the name one of a, b"),
        (["--inputs", "a=[[1", "b=1"], "'a' is not JSON"),
        (["--inputs", "a=nowhere.npy", "b=1"], "nowhere.npy"),
        (["--inputs", "a=words", "b=1"], "neither a NumPy file nor JSON"),
        (["--inputs", 'a="text"', "b=1"], "input 'a'"),
        (["--inputs", "a=[1, 2]", "b=1"], "shape"),
        (["--fill", "ones", "--shape", "c=1"], "no input 'c'"),
        (["--fill", "ones", "--shape", "a=1,2"], "cannot have that shape"),
        (["--fill", "ones", "--output", "x.json"], "only as NumPy files"),
        (["--fill", "ones", "--output", "{}/x.npy"], "one output"),
        (["--fill", "ones", "--signature", "nothing"], "no such signature"),
    ],
)
def test_input_mistakes_are_one_line(
    ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    given = [argument.format(tmp_path) for argument in arguments]
    assert main(["run", str(ours), "--signature", "sum", *given]) == 2
    assert message in capsys.readouterr().err


def test_debug_shows_the_traceback(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(ours), "--signature", "sum", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("rows", [10**13, 10**22])
def test_input_too_large_for_memory_is_rejected(foreign: Path, capsys: pytest.CaptureFixture[str], rows: int) -> None:
    assert main(["run", str(foreign), "--fill", "ones", "--shape", f"x={rows},3"]) == 2
    assert "input 'x' is too large" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["npy", "npz"])
def test_run_rejects_a_file_that_declares_more_than_the_memory(
    foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    path, head = tmp_path / f"given.{form}", BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**13, 3)}
    np.lib.format.write_array_header_1_0(head, header)
    if form == "npy":
        path.write_bytes(head.getvalue())
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", head.getvalue())
    assert main(["run", str(foreign), "--inputs", str(path)]) == 2
    assert "too large" in capsys.readouterr().err


def test_run_rejects_a_damaged_archive(foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "given.npz", x=GIVEN)
    contents = (tmp_path / "given.npz").read_bytes()
    (tmp_path / "given.npz").write_bytes(contents[: len(contents) // 2])
    assert main(["run", str(foreign), "--inputs", str(tmp_path / "given.npz")]) == 2
    assert "is not a NumPy file" in capsys.readouterr().err


def test_weights_without_a_graph_cannot_be_run(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(ours / "weights.safetensors")]) == 2
    assert "no signature to call" in refusal(capsys)


# ── inspect ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def document(capsys: pytest.CaptureFixture[str], *arguments: str | Path, status: int = 0) -> Any:
    assert main(["inspect", "--json", *map(str, arguments)]) == status
    return json.loads(output(capsys))


@pytest.mark.parametrize("which", ["ours", "theirs", "foreign", "frozen"])
def test_inspect_reports_signature_ops_parameters_and_estimate(
    which: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, request.getfixturevalue(which), "--shape", "x=5,3")
    call = found["signatures"]["serving_default"]
    assert [(i["name"], i["dtype"], i["shape"]) for i in call["inputs"]] == [("x", "float32", [None, 3])]
    assert [(o["name"], o["dtype"]) for o in call["outputs"]] == [("y", "float32")]
    assert found["ops"]["MatMul"] == 1
    assert (found["parameters"]["count"], found["parameters"]["bytes"]) == (6, 24)
    assert found["unsupported"] == []
    estimate = call["estimate"]
    assert estimate["shapes"] == {"x": [5, 3]}
    assert estimate["flops"] == 2 * 5 * 3 * 2
    assert estimate["peak_bytes"] == 4 * 5 * 2
    assert estimate["moved_bytes"] >= 4 * (5 * 3 + 3 * 2 + 5 * 2)


async def save_maker(folder: Path) -> None:
    """Save a model with two nested loops, whose only parameters are those that nodes make."""
    with af.Graph().as_default():
        x = af.placeholder("float32", [None, 3], name="x")
        n = af.placeholder("int32", [], name="n")
        y = af.matmul(x, af.fill([3, 2], 0.5))
        y += af.reshape(af.zeros([2]) + 1.0, [1, 2])

        def add(i: Any, total: Any) -> Any:
            inner = af.while_loop(lambda j, _: j < n, lambda j, s: (j + 1, s * 2.0), (af.constant(0), total))
            return i + 1, inner[1]

        y = af.while_loop(lambda i, _: i < n, add, (af.constant(0), y))[1]
        async with af.Session() as session:
            await af.saved.save(session, folder, Signature({"x": x, "n": n}, {"y": y}))


def test_inspect_reports_constants_made_by_nodes_and_loops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(save_maker(tmp_path / "m"))
    estimate = document(capsys, tmp_path / "m")["signatures"]["serving_default"]["estimate"]
    assert (estimate["loops"], estimate["made_tensors"], estimate["made_bytes"]) == (2, 2, 4 * (6 + 2))
    assert main(["inspect", str(tmp_path / "m")]) == 0
    shown = output(capsys)
    assert "one iteration of each of 2 loops" in shown
    assert "nodes create 2 tensors of constants, 32 B" in shown


def test_inspect_omits_loops_and_made_constants_if_there_are_none(
    foreign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(foreign)]) == 0
    shown = output(capsys)
    assert "iteration" not in shown
    assert "nodes create" not in shown


def test_versions_and_producer(ours: Path, foreign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, foreign)
    assert found["versions"] == {"IR": "8", "opset": "17", "opset com.example": "1"}
    assert found["producer"] == "somebody"
    found = document(capsys, ours)
    assert found["producer"] == f"aioflow {af.__version__}"
    assert found["versions"]["format"] == "1"


def test_inspect_as_text(ours: Path, foreign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(foreign)]) == 0
    shown = output(capsys)
    assert "1 node of 1 op in the file\n" in shown
    assert "6 parameters in 1 tensor, 24 B" in shown
    assert re.search(r"in +x +float32 +\[\?, 3\]", shown)
    assert "about 12 FLOP" in shown
    assert "--shape" in shown, "an open size is said to count as one"
    assert main(["inspect", str(ours)]) == 0
    assert [line for line in output(capsys).splitlines() if line.startswith("signature")] == [
        "signature serving_default",
        "signature sum",
        "signature text",
    ]


def test_all_unsupported_nodes_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = [helper.make_node("Odd", ["y"], [f"odd{i}"], f"odd_{i}", domain="com.example") for i in range(8)]
    other = helper.make_node("Other", ["odd0"], ["z"], "last", domain="com.example")
    path = _onnx(tmp_path / "odd.onnx", *odd, other, outputs=("z",))
    found = document(capsys, path, status=1)
    assert {each["op"].rpartition(":")[2] for each in found["unsupported"]} == {"Odd", "Other"}
    assert [each["node"] for each in found["unsupported"]] == [*(f"odd_{i}" for i in range(8)), "last"]
    assert found["ops"] == {"com.example:Odd": 8, "MatMul": 1, "com.example:Other": 1}
    assert main(["inspect", str(path)]) == 1
    shown = output(capsys)
    assert "unsupported: 2 ops in 9 nodes" in shown
    assert "odd_4, and 3 more" in shown
    assert main(["run", str(path), "--fill", "ones"]) == 2
    assert "Odd" in capsys.readouterr().err


def test_graph_definition_with_unknown_ops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = (af.NodeDef("a", "OddOne"), af.NodeDef("b", "NoOp", ("^a",)))
    (tmp_path / "odd").write_bytes(af.GraphDef(nodes).to_bytes())
    found = document(capsys, tmp_path / "odd", status=1)
    assert [(each["op"], each["node"]) for each in found["unsupported"]] == [("OddOne", "a")]
    assert found["ops"] == {"NoOp": 1, "OddOne": 1}


def test_weights_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(save_weights(tmp_path / "model.safetensors", {"small": WEIGHT[:1], "large": WEIGHT}))
    for path in (tmp_path, tmp_path / "model.safetensors"):
        assert main(["inspect", str(path)]) == 0
        shown = output(capsys)
        assert "8 parameters in 2 tensors, 32 B" in shown
        assert shown.index("large") < shown.index("small")
        assert re.search(r"large +float32 +\[3, 2\] +24 B", shown)


@pytest.mark.parametrize("form", [{}, {"incremental": True}, {"write_version": 2}])
def test_checkpoints_are_listed(form: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def write() -> None:
        with af.Graph().as_default():
            w = af.Variable(WEIGHT, name="w")
            async with af.Session() as session:
                await session.run(w.initializer)
                await af.train.Saver(**form).save(session, tmp_path / "ck", global_step=3)

    asyncio.run(write())
    (of_its_own,) = [*tmp_path.glob("*.manifest.json"), *tmp_path.glob("*.index")]
    for path in (tmp_path / "ck-3", of_its_own):
        found = document(capsys, path)
        assert found["format"] == "checkpoint"
        assert [(p["name"], p["dtype"], p["shape"]) for p in found["parameters"]["tensors"]] == [
            ("w", "float32", [3, 2])
        ]
    assert main(["run", str(tmp_path / "ck-3")]) == 2
    said = refusal(capsys)
    assert "no signature to call" in said
    assert "aioflow.saved.save" in said


def test_damaged_model_is_an_error(ours: Path, foreign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign.write_bytes(foreign.read_bytes()[:-10])
    (ours / "graph.aiograph").write_bytes(b"")
    for path in (ours, foreign):
        assert main(["inspect", str(path)]) == 2
        refusal(capsys)


def test_costs_follow_the_sizes(tmp_path: Path) -> None:
    """Checks the multiply-adds of a convolution, and a peak of two live results in a chain."""
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [None, 16, 16, 3], name="x")
        kernel = af.constant(np.ones((3, 3, 3, 8), np.float32))
        y = af.nn.conv2d(x, kernel, [1, 1, 1, 1], "SAME", name="conv")
        af.nn.relu(y, name="y")
    model = open_model(af.train.write_graph(graph, tmp_path, "graph"))
    found = estimated(model, model.signature(), {"x": (2, 16, 16, 3)})
    products = 2 * 2 * 16 * 16 * 8 * 3 * 3 * 3
    assert products <= found.flops <= 1.02 * products
    assert 4 * 2 * 16 * 16 * 8 <= found.peak_bytes <= 2 * 4 * 2 * 16 * 16 * 8
    assert estimated(model, model.signature(), {"x": (None, 16, 16, 3)}).flops == found.flops / 2


def test_signature_without_an_estimate_is_still_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [None, None], name="x")
        af.squeeze(x, [1], name="y")
    path = af.train.write_graph(graph, tmp_path, "graph")
    assert main(["inspect", path, "--shape", "x=2,3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  in   x  float32  [?, ?]" in lines
    assert any(line.startswith("  no estimate for these sizes: ") for line in lines)
    assert main(["inspect", path, "--shape", "x=2,3", "--json"]) == 0
    assert "squeeze" in json.loads(capsys.readouterr().out)["signatures"]["serving_default"]["estimate"]["error"]
    assert main(["inspect", path, "--shape", "x=2,1"]) == 0
    assert "  out  y  float32  [2]" in capsys.readouterr().out.splitlines()


def test_tables_fit_into_narrow_terminals(
    ours: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tables, "width", lambda: 40)
    assert main(["inspect", str(ours)]) == 0
    ops = output(capsys).partition("\nops\n")[2].splitlines()
    assert len(ops) > 1
    assert all(len(line) <= 40 for line in ops)
    rows = list(tables.rows([("a", "b" * 100), ("aa", "c")]))
    assert rows == [f"  a   {'b' * 33}…", "  aa  c"]
    monkeypatch.setattr(tables, "width", lambda: 30)
    packed = list(tables.packed([("first", "1"), ("second", "20"), ("third", "3")]))
    assert packed == ["  first   1   third   3", "  second 20"]


def test_numbers_are_readable() -> None:
    assert tables.decimal(4_090_000_000, "FLOP") == "4.09 GFLOP"
    assert tables.decimal(12, "FLOP") == "12 FLOP"
    assert tables.plural(1, "node") == "1 node"
    assert tables.plural(1234567, "node") == "1,234,567 nodes"
    assert tables.shape_text((None, 3)) == "[?, 3]"
    assert tables.shape_text(None) == "any rank"


def test_help_names_run_and_inspect(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = output(capsys)
    assert " run " in shown
    assert " inspect " in shown


def test_model_opened_by_its_manifest_equals_its_folder(ours: Path) -> None:
    assert open_model(ours / "aioflow.json").source == load(ours).source
    assert os.fspath(ours) in load(ours).source


@pytest.mark.parametrize("part", [b"Operation", b"domain.of", b"producer.of", b"weight.of", b"import.of"])
def test_names_that_are_not_text_do_not_cause_a_traceback(
    part: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = helper.make_tensor("weight.of", TensorProto.FLOAT, [2], [1.0, 2.0])
    node = helper.make_node("Operation", ["weight.of"], ["y"], domain="domain.of")
    graph = helper.make_graph([node], "g", [], [], [values])
    opsets = [helper.make_opsetid(domain, 18) for domain in ("", "domain.of", "import.of")]
    model = helper.make_model(graph, opset_imports=opsets, producer_name="producer.of", ir_version=9)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString().replace(part, b"\xff" + part[1:]))
    for options in ([], ["--json"]):
        assert main(["inspect", *options, str(path)]) in (1, 2)
        shown = capsys.readouterr()
        assert "Traceback" not in shown.out + shown.err
