"""Tests of delegation in services and commands: they use an installed engine, and report what it computes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import aioflow as af
from aioflow.cli import main
from aioflow.serve import ModelOptions
from aioflow.serve.models import open_served
from aioflow_onnxruntime.kernels import Delegated
from tests.backends.onnxruntime.steps import floats, layers
from tests.serve.folders import save_model

Ends = dict[str, af.Tensor]


def net() -> tuple[Ends, Ends]:
    x = af.placeholder("float32", [None, 32], name="x")
    return {"x": x}, {"y": layers(x, 64, 8)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    asyncio.run(save_model(tmp_path / "net", net))
    return tmp_path / "net"


async def test_service_is_ready_when_its_parts_are_prepared(folder: Path, parts: list[Delegated]) -> None:
    served = await open_served("net", 1, folder, ModelOptions())
    async with served.session:
        assert served.session.engine == "onnxruntime"
        assert parts
        assert all(part.part is not None for part in parts)


async def test_service_without_an_engine(folder: Path, parts: list[Delegated]) -> None:
    served = await open_served("net", 1, folder, ModelOptions(config=af.SessionConfig()))
    async with served.session:
        assert served.session.engine is None
        assert not parts


async def test_batch_warmup_waits_for_the_parts(parts: list[Delegated]) -> None:
    inputs, outputs = net()
    async with af.Session(config=af.SessionConfig(delegate="auto")) as session:
        call = session.batched(outputs["y"], [inputs["x"]], max_batch_size=4)
        await session.warmup(call)
        assert parts
        assert all(part.part is not None for part in parts)
        assert (await call(floats(2, 32))).shape == (2, 8)


@pytest.mark.parametrize(
    ("options", "delegated"),
    [
        (["--repeat", "3"], True),
        (["--delegate", "onnxruntime"], True),
        (["--repeat", "3", "--delegate", "none"], False),
        ([], False),  # one step ends before a part could be ready
    ],
)
def test_run_delegates_if_there_is_time(
    folder: Path, parts: list[Delegated], capsys: pytest.CaptureFixture[str], options: list[str], delegated: bool
) -> None:
    assert main(["run", str(folder), "--fill", "ones", "--shape", "x=4,32", *options]) == 0
    shown = capsys.readouterr().out
    assert "out  y" in shown
    assert ("onnxruntime computes" in shown) is delegated
    assert bool(parts) is delegated
    assert all(part.part is not None for part in parts)


def test_profile_shows_parts_under_the_engines_name(
    folder: Path, parts: list[Delegated], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", str(folder), "--fill", "ones", "--shape", "x=4,32"]) == 0
    shown = capsys.readouterr().out
    assert "_Delegated" not in shown
    assert any(line.strip().startswith("onnxruntime") for line in shown.splitlines())
    assert "use --delegate none to time each node" in shown
    assert main(["profile", str(folder), "--fill", "ones", "--shape", "x=4,32", "--delegate", "none"]) == 0
    assert "onnxruntime" not in capsys.readouterr().out


def test_missing_engine_is_reported_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(folder), "--fill", "ones", "--shape", "x=4,32", "--delegate", "nothing"]) == 2
    assert "no engine 'nothing'" in capsys.readouterr().err


def test_inspect_reports_the_delegated_nodes(
    folder: Path, parts: list[Delegated], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "--json", str(folder)]) == 0
    found: Any = json.loads(capsys.readouterr().out)["signatures"]["serving_default"]["delegation"]
    assert found["engine"] == "onnxruntime"
    assert [len(part) for part in found["parts"]] == [6]
    assert found["stays"] == []
    assert main(["inspect", str(folder)]) == 0
    assert "onnxruntime computes 6 of 6 nodes after optimization, in 1 part" in capsys.readouterr().out
    assert main(["inspect", str(folder), "--delegate", "none"]) == 0
    assert "onnxruntime" not in capsys.readouterr().out


def test_inspect_continues_if_no_step_can_be_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [None, 3], name="x")
        with af.device("/job:worker/task:3"):
            af.tanh(x, name="y")
    path = af.train.write_graph(graph, tmp_path, "placed.pb", as_text=False)
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "no step can be planned here" in shown
    assert "ops" in shown


def test_session_delegation_names_the_nodes(parts: list[Delegated]) -> None:
    x = af.placeholder("float32", [None, 4], name="x")
    y = af.gather(af.tanh(x, name="t"), af.cast(x[0], "int32"), name="g")
    with af.Session(config=af.SessionConfig(delegate="auto")) as session:
        found = session.delegation(y, [x])
        assert any("t" in part for part in found.parts)
        assert found.stays["g"].op == "GatherV2"
    with af.Session() as session:
        assert session.delegation(y, [x]).engine is None
