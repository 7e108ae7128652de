"""`aioflow explain`: a model, its placement and prediction as text and picture, and errors in one line."""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aioflow as af
from aioflow.cli import main
from aioflow.compiler.place.calibration import DEFAULT_SPEEDS, Calibration, write_calibration
from aioflow.net.cluster_spec import free_addresses
from aioflow.train import write_graph


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Save two branches of products, large enough for two devices, and their sum."""
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [None, 512], name="x")
        branches = []
        for name in ("left", "right"):
            y = x
            for i in range(4):
                y = af.matmul(y, af.ones([512, 512]), name=f"{name}{i}")
            branches.append(y)
        total = af.add(branches[0], branches[1], name="total")
        af.group(total, name="everything")
        af.add(total, af.constant([1.0]), name="after")
    return Path(write_graph(graph, tmp_path, "<saved & sound>.json"))


@pytest.fixture(autouse=True)
def _no_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the tests use the shipped calibration, independent of this machine's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


def run(*argv: str | Path) -> int:
    return main(["explain", *map(str, argv)])


def test_branches_are_shown_on_two_devices(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(saved, "--fetch", "total:0", "--device-count", "CPU=2", "--unoptimized") == 0
    out = capsys.readouterr().out
    first, second = out.split("device:CPU:0:")[1].split("device:CPU:1:")
    sides = {name: (name in first.split(), name in second.split()) for name in ("left0", "left3", "right0", "right3")}
    assert sides["left0"] == sides["left3"] != sides["right0"] == sides["right3"]
    assert "predicted step" in out
    assert "measured step" not in out
    assert " transfer" in out


def test_several_fetches_are_all_shown(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(saved, "--fetch", "left0", "--fetch", "right0", "--unoptimized") == 0
    assert {"left0", "right0"} <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize("fetch", ["total", "everything", "after:0"])
def test_fetches_may_be_tensors_and_operations(saved: Path, capsys: pytest.CaptureFixture[str], fetch: str) -> None:
    assert run(saved, "--fetch", fetch, "--unoptimized") == 0
    out = capsys.readouterr().out
    assert "right3" in out
    assert ("after" in out) == (fetch == "after:0")
    assert "on 1 device," in out


def test_picture_has_the_file_name_as_its_title(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "step.svg"
    assert run(saved, "--fetch", "total", "--device-count", "CPU=2", "--svg", path) == 0
    root = ElementTree.parse(path).getroot()
    assert "<saved & sound>.json: predicted step" in ["".join(t.itertext()) for t in root]


def predicted(out: str) -> str:
    return next(line for line in out.splitlines() if line.startswith("predicted step"))


def test_run_shows_the_measured_and_the_predicted_step(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `--run` the prediction uses measured times, so an absurd calibration has no effect."""
    absurd = Calibration({"CPU": replace(DEFAULT_SPEEDS["CPU"], overhead=1e4)})
    path = tmp_path / "absurd.json"
    write_calibration(absurd, path)
    argv: list[str | Path] = [saved, "--fetch", "total", "everything", "--calibration", path, "--unoptimized"]
    assert run(*argv) == 0
    assert "e+05 s" in predicted(capsys.readouterr().out)
    assert run(*argv, "--run") == 0
    out = capsys.readouterr().out
    assert "measured step" in out
    assert re.search(r" [\d.]+ (µs|ms)$", predicted(out))


def test_run_starts_variables_at_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Covers variables in branches, of strings, and of unknown size: a saved graph has no initial values."""
    with af.Graph().as_default() as graph:
        w = af.get_variable("w", [8, 8])
        s = af.Variable(["a", "b"], name="s")
        n = af.Variable([1.0], name="n", shape=af.TensorShape([None]))
        y = af.cond(af.reduce_sum(n) > 0, lambda: af.matmul(w, w), lambda: af.zeros([8, 8]))
        train = af.train.GradientDescentOptimizer(0.1).minimize(af.reduce_sum(y))
        af.group(train, af.identity(s), name="step")
    path = Path(write_graph(graph, tmp_path, "g.json"))
    assert run(path, "--fetch", "step", "--run") == 0, capsys.readouterr().err
    assert "measured step" in capsys.readouterr().out


def test_graph_is_explained_on_the_devices_of_a_cluster(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ports = free_addresses(2)
    spec = {"ps": ports[:1], "worker": ports[1:]}
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with af.train.Server(spec, "ps", 0), af.train.Server(spec, "worker", 0):
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60)
        target = f"aioflow://{ports[0]}"
        assert run(saved, "--fetch", "total:0", "--target", target, "--unoptimized", "--run") == 0
        out = capsys.readouterr().out
        assert "/job:ps/replica:0/task:0/device:CPU:0:" in out
        assert "/job:worker/replica:0/task:0/device:CPU:0:" in out
        assert "measured step" in out
    finally:
        done.set()
        thread.join()
    assert run(saved, "--fetch", "total:0", "--target", target) == 2
    assert ports[0] in capsys.readouterr().err


def test_placement_strategy_option(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(saved, "--fetch", "total", "--device-count", "CPU=3", "--strategy", "round_robin") == 0
    assert "on 3 devices, placed by round_robin" in capsys.readouterr().out


def test_errors_go_to_the_error_output(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.json").write_text("{")
    calibration = tmp_path / "calibration.json"
    calibration.write_text("[]")
    cases: list[tuple[list[str | Path], str]] = [
        ([tmp_path / "missing.json", "--fetch", "total"], "missing.json"),
        ([tmp_path / "broken.json", "--fetch", "total"], "broken.json"),
        ([saved, "--fetch", "totl"], "totl"),
        ([saved, "--fetch", "total", "--calibration", calibration], "calibration.json"),
        ([saved, "--fetch", "total", "--svg", tmp_path / "no" / "where.svg"], "where.svg"),
    ]
    for argv, part in cases:
        assert run(*argv) == 2
        captured = capsys.readouterr()
        assert part in captured.err
        assert "Traceback" not in captured.err
        assert captured.out == ""


def test_unsatisfiable_device_error_names_the_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with af.Graph().as_default() as graph:
        near = af.constant(1.0)
        with af.device("/cpu:5"):
            af.square(near, name="far")
    path = Path(write_graph(graph, tmp_path, "g.json"))
    assert run(path, "--fetch", "far", "--device-count", "CPU=2", "--unoptimized") == 2
    assert "far" in capsys.readouterr().err
    assert run(path, "--fetch", "far", "--device-count", "CPU=2", "--unoptimized", "--soft") == 0


@pytest.mark.parametrize("count", ["CPU", "CPU=0", "CPU=x", "=2", "4"])
def test_malformed_device_count_is_rejected(saved: Path, capsys: pytest.CaptureFixture[str], count: str) -> None:
    with pytest.raises(SystemExit):
        run(saved, "--fetch", "total", "--device-count", count)
    assert "CPU=4" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["/job:ps", "/job:ps/task:0/device:CPU:0", "/task:1"])
def test_graph_of_a_cluster_needs_a_target(tmp_path: Path, capsys: pytest.CaptureFixture[str], device: str) -> None:
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [None], name="x")
        with af.device(device):
            af.square(x, name="far")
    path = write_graph(graph, tmp_path, "graph.json")
    assert run(path, "--fetch", "far") == 2
    error = capsys.readouterr().err
    assert "--target aioflow://HOST:PORT" in error
    assert f"{device} (node 'far')" in error
    assert len(error.splitlines()) == 1


def test_graph_in_a_store_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with af.Graph().as_default() as graph:
        af.square(af.placeholder("float32", [8], name="x"), name="y")
    url = write_graph(graph, "memory://explained/run", "graph.json")
    assert run(url, "--fetch", "y") == 0
    assert "predicted step" in capsys.readouterr().out


def test_channels_first_layers_keep_two_transposes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In models from ONNX, the graph has a transpose before and after each convolution; two of all remain."""
    with af.Graph().as_default() as graph:

        def layer(x: af.Tensor) -> af.Tensor:
            made = af.nn.conv2d(af.transpose(x, [0, 2, 3, 1]), af.ones([3, 3, 8, 8]), padding="SAME")
            return af.nn.relu(af.transpose(made, [0, 3, 1, 2]))

        x = layer(af.placeholder("float32", [1, 8, 12, 12]))
        for _ in range(3):
            x += layer(x)
        af.identity(x, name="made")
    saved = write_graph(graph, tmp_path, "net.json")
    assert run(saved, "--fetch", "made:0", "--unoptimized") == 0
    assert re.search(r"^transposes +8 \(.*, …\)$", capsys.readouterr().out, re.MULTILINE)
    assert run(saved, "--fetch", "made:0") == 0
    found = re.search(r"^transposes +(\d+) ", capsys.readouterr().out, re.MULTILINE)
    assert found is not None
    assert int(found[1]) <= 2


@pytest.fixture
def network(tmp_path: Path) -> str:
    """Save a convolution and its normalization, in an ONNX file."""
    numbers = {"w": [4, 3, 3, 3], "scale": [4], "shift": [4], "mean": [4], "variance": [4]}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("BatchNormalization", ["h", "scale", "shift", "mean", "variance"], ["n"], name="normal"),
        helper.make_node("Relu", ["n"], ["y"], name="positive"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4, 8, 8])],
        [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in numbers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 10
    onnx.save(model, tmp_path / "model.onnx")
    return str(tmp_path / "model.onnx")


def test_model_of_any_format_is_explained_by_its_signature(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(network, "--run", "--shape", "x=2,3,8,8") == 0
    out = capsys.readouterr().out
    assert "  FusedBatchNormV3 " in out
    assert "measured step" in out
    assert run(network, "--fold-batch-norm") == 0
    assert "  FusedBatchNormV3 " not in capsys.readouterr().out
    assert run(network, "--fold-batch-norm", "--unoptimized") == 2
    assert "--fold-batch-norm" in capsys.readouterr().err


def test_nodes_of_an_engine_are_listed(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    assert run(network, "--shape", "x=2,3,8,8", "--run", "--delegate", "onnxruntime") == 0
    assert "onnxruntime computes" in capsys.readouterr().out
    assert run(network) == 0
    assert "onnxruntime" not in capsys.readouterr().out, "only on request"


def test_folder_of_a_model_runs_with_its_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def save() -> None:
        with af.Graph().as_default() as graph:
            x = af.placeholder("float32", [None, 4], name="x")
            w = af.Variable(np.ones((4, 2), np.float32), name="w")
            y = af.matmul(x, w)
            async with af.Session(graph=graph) as session:
                await session.run(af.global_variables_initializer())
                await af.saved.save(session, tmp_path / "model", af.saved.Signature({"x": x}, {"y": y}))

    asyncio.run(save())
    assert run(tmp_path / "model", "--run") == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert "measured step" in out
    assert "MatMul" in out
