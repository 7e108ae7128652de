"""Event files of aioflow, shown by a real TensorBoard in its own process."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

import aioflow as af
from tests.support.processes import end, start

pytest.importorskip("tensorboard.version", reason="tensorboard is the oracle: pip install 'aioflow-engine[parity]'")

STEPS = 5
ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}


async def train(folder: Path) -> None:
    """Run a small training with every kind of summary, an op of our own, and a traced step."""
    step = af.train.get_or_create_global_step()
    x = af.placeholder(af.float32, [None, 3], name="x")
    with af.name_scope("layer"):
        weights = af.get_variable("weights", [3, 2], initializer=af.ones_initializer())
        y = af.matmul(x, weights, name="product")
        af.summary.histogram("spread", y)
    loss = af.reduce_mean(af.square(y), name="mean_square")
    own = af.py_coroutine(_slowly, [loss], af.float32, shapes=[], name="node_of_ours")
    af.summary.scalar("loss", loss)
    af.summary.scalar("own", own, family="family")
    af.summary.image("picture", af.reshape(af.range(2 * 5 * 7 * 3, dtype=af.float32), [2, 5, 7, 3]))
    af.summary.audio("sound", af.zeros([1, 400]), 8000.0, max_outputs=1)
    af.summary.text("note", af.constant("**in bold**"))
    update = af.train.GradientDescentOptimizer(0.01).minimize(loss, step)
    hooks = [af.train.ProfilerHook(save_steps=3, output_dir=folder)]
    async with af.train.MonitoredTrainingSession(
        summary_dir=folder, save_summaries_steps=1, log_step_count_steps=1, hooks=hooks
    ) as session:
        for number in range(STEPS):
            await session.run(update, {x: np.full((4, 3), number + 1, np.float32)})
    await af.summary.FileWriterCache.clear()


async def _slowly(value: Any) -> Any:
    return value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import asyncio

    made = tmp_path_factory.mktemp("logs") / "run"
    with af.Graph().as_default():
        asyncio.run(train(made))
    return made


class TensorBoard:
    """A TensorBoard process and its HTTP interface."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = ["-m", "tensorboard.main", "--logdir", str(folder.parent), "--port", str(self.port)]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = start(*command, "--host", "127.0.0.1", "--load_fast=false", env=ENVIRONMENT, **quiet)

    def get(self, plugin: str, /, **parameters: Any) -> bytes:
        """Return the response of `/data/plugin/…`."""
        url = f"http://127.0.0.1:{self.port}/data/plugin/{plugin}" + (f"?{urlencode(parameters)}" if parameters else "")
        with urllib.request.urlopen(url, timeout=60) as answer:
            data: bytes = answer.read()
        return data

    def json(self, plugin: str, /, **parameters: Any) -> Any:
        return json.loads(self.get(plugin, **parameters))

    def wait(self) -> None:
        """Wait until TensorBoard has read the folder."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                if self.json("scalars/tags").get("run") and "run" in self.json("graphs/info"):
                    return
            except (urllib.error.URLError, ConnectionError):
                assert self.process.poll() is None
            time.sleep(0.2)  # polls another process
        raise AssertionError("TensorBoard does not show the run")


@pytest.fixture(scope="module")
def board(folder: Path) -> Iterator[TensorBoard]:
    made = TensorBoard(folder)
    try:
        made.wait()
        yield made
    finally:
        end(made.process)


def test_scalars(board: TensorBoard) -> None:
    assert {"loss", "family/family/own", "global_step/sec"} <= set(board.json("scalars/tags")["run"])
    shown = board.json("scalars/scalars", tag="loss", run="run")
    assert [step for _, step, _ in shown] == [1, 2, 3, 4, 5]
    assert shown[0][2] == pytest.approx(9.0)


def test_histograms(board: TensorBoard) -> None:
    shown = board.json("histograms/histograms", tag="layer/spread", run="run")
    assert [step for _, step, _ in shown] == [1, 2, 3, 4, 5]
    assert sum(count for _, _, count in shown[0][2]) == pytest.approx(8)


def test_images(board: TensorBoard) -> None:
    shown = board.json("images/images", tag="picture/image/1", run="run", sample=0)
    assert [image["step"] for image in shown] == [1, 2, 3, 4, 5]
    data = board.get("images/individualImage?" + shown[0]["query"])
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (7, 5)


def test_sounds(board: TensorBoard) -> None:
    (shown, *_) = board.json("audio/audio", tag="sound/audio", run="run", sample=0)
    assert shown["contentType"] == "audio/wav"


def test_text(board: TensorBoard) -> None:
    shown = board.json("text/text", tag="note", run="run")
    assert "<strong>in bold</strong>" in shown[-1]["text"]


def test_graph_shows_ops_of_our_own(board: TensorBoard) -> None:
    shown = board.get("graphs/graph", run="run", conceptual="false").decode()
    assert 'name: "layer/product"' in shown
    assert 'name: "node_of_ours"' in shown


def test_run_metadata(board: TensorBoard) -> None:
    info = board.json("graphs/info")["run"]["tags"]
    assert info["step_3"]["profile"]
    shown = board.get("graphs/run_metadata", run="run", tag="step_3").decode()
    assert "layer/product" in shown
    assert "requested_bytes" in shown


def test_tensorboards_reader(folder: Path) -> None:
    # Run by path: another distribution in this environment has a package `tests`, which `-m` would find.
    command = [sys.executable, str(Path(__file__).with_name("tensorboard_reader.py")), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [step for step, _ in found["scalars"]["loss"]] == [1, 2, 3, 4, 5]
    assert found["histograms"]["layer/spread"] == [8] * STEPS
    assert found["images"]["picture/image/0"] == [[7, 5]] * STEPS
    assert ["layer/product", "MatMul"] in found["nodes"]
    assert "layer/product" in found["traced"]["step_3"]


def test_tensorflow_imports_the_graph(tf: Any, folder: Path) -> None:
    found = 0
    for path in folder.glob("events.*"):
        for event in tf.train.summary_iterator(str(path)):
            if event.HasField("graph_def"):
                with tf.Graph().as_default() as graph:
                    tf.import_graph_def(tf.GraphDef.FromString(event.graph_def), name="")
                assert graph.get_operation_by_name("node_of_ours").get_attr("token") == b"AioflowPyCoroutine"
                found += 1
    assert found
