"""`aioflow profile`: the time of a model by op and by node, and a trace of it."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.cli import main
from aioflow.saved import Signature, save
from tests.observe.trace_format import problems


async def _save(folder: Path) -> None:
    with af.Graph().as_default():
        x = af.placeholder("float32", [None, 64], name="x")
        w = af.Variable(np.ones((64, 32), np.float32), name="w")
        h = af.square(af.matmul(x, w, name="first"))
        y = af.matmul(af.matmul(h, h, transpose_b=True, name="second"), h, name="third")
        n = af.placeholder("int32", [], name="n")
        i = af.while_loop(lambda i: i < n, lambda i: af.add(i, 1, name="count"), [af.constant(0)], name="loop")
        calls = {"serving_default": Signature({"x": x}, {"y": y}), "loop": Signature({"n": n}, {"i": i})}
        async with af.Session() as session:
            await session.run(w.initializer)
            await save(session, folder, calls)


@pytest.fixture
def model(tmp_path: Path) -> str:
    asyncio.run(_save(tmp_path / "model"))
    return str(tmp_path / "model")


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["profile", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_op_has_its_count_time_and_flops(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, model, "--fill", "ones", "--shape", "x=8,64", "--steps", "4")
    assert found["steps"] == len(found["seconds"]) == 4
    assert all(seconds > 0 for seconds in found["seconds"])
    nodes = {row["name"]: row for row in found["nodes"]}
    for name, flops in {"first": 2 * 8 * 64 * 32, "second": 2 * 8 * 32 * 8, "third": 2 * 8 * 8 * 32}.items():
        assert nodes[name]["op"] == "MatMul"
        assert nodes[name]["flops"] == pytest.approx(flops)
        assert nodes[name]["count"] == pytest.approx(1)
    ops = {row["op"]: row for row in found["ops"]}
    products = [row for row in nodes.values() if row["op"] == "MatMul"]
    assert ops["MatMul"]["count"] == pytest.approx(3)
    for what in ("seconds", "share", "flops"):
        assert ops["MatMul"][what] == pytest.approx(sum(row[what] for row in products))
    assert sum(row["share"] for row in found["ops"]) == pytest.approx(1)
    assert sum(row["seconds"] for row in found["ops"]) <= max(found["seconds"])
    assert [row["seconds"] for row in found["nodes"]] == sorted((r["seconds"] for r in found["nodes"]), reverse=True)


def test_node_in_a_loop_counts_each_run(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, model, "--signature", "loop", "--inputs", "n=5")
    assert max(row["count"] for row in found["nodes"] if row["name"].startswith("loop")) >= 5


def test_profile_as_text(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", model, "--fill", "random", "--shape", "x=8,64", "--steps", "2"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^2 traced steps: median [\d.]+ .?s, of which nodes take [\d.]+ .?s$", text, re.MULTILINE)
    (row,) = re.findall(r"^  MatMul +3 +([\d.]+) .?s +([\d.]+) .?s +([\d.]+)% +([\d.]+)$", text, re.MULTILINE)
    assert all(float(number) > 0 for number in row)
    assert re.search(r"^the (\d) slowest of \1 nodes$", text, re.MULTILINE)
    assert re.search(r"MatMul +first$", text, re.MULTILINE)


def test_last_step_is_written_as_a_trace(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.json"
    assert main(["profile", model, "--fill", "ones", "--steps", "1", "--trace", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"the last step: written to {path}"
    trace = json.loads(path.read_text())
    assert problems(trace) == []
    assert sum(event["name"] == "MatMul" for event in trace["traceEvents"]) == 3


def test_missing_input_is_one_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", model]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "inputs are missing: x" in line
