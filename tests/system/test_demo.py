"""The demo trains and serves at the same time, writes a checkpoint and a picture, resumes, and stops on Ctrl-C."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from rich.console import Console

import aioflow as af
from aioflow.demo.main import DemoOptions, TrainingHistory, run_demo
from aioflow.demo.model import build
from aioflow.demo.service import make_app, serving
from tests.support.processes import SECONDS, program


async def _run(folder: Path, steps: int) -> tuple[str, float, int]:
    text = io.StringIO()
    outcome = await run_demo(DemoOptions(steps, folder, 0), Console(file=text, width=120))
    assert outcome.traffic.latencies, "nobody was served while training"
    return text.getvalue(), outcome.accuracy, outcome.step


async def test_demo_trains_serves_and_resumes(tmp_path: Path) -> None:
    text, accuracy, step = await _run(tmp_path, 400)
    assert "Starting from scratch" in text
    assert accuracy > 0.93
    assert step == 400
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    text, again, step = await _run(tmp_path, 50)
    assert "Resumed" in text
    assert again > 0.93
    assert step == 450


async def test_the_service_rejects_malformed_images() -> None:
    model = build()
    async with af.Session(graph=model.graph) as session:
        await session.run(model.initialize)
        async with (
            serving(make_app(model, session), 0) as url,
            httpx.AsyncClient(base_url=url, trust_env=False) as client,
        ):
            assert (await client.post("/predict", json={"pixels": [1, 2, 3]})).status_code == 400
            assert (await client.post("/predict", json={"rows": []})).status_code == 400
            for body in ("[" * 200_000, f'{{"pixels": [[{"1" * 400}]]}}', f'{{"pixels": {[[1e300] * 64]}}}'):
                assert (await client.post("/predict", content=body)).status_code == 400
            answer = (await client.post("/predict", json={"pixels": [[0.5] * 64] * 3})).json()
            assert len(answer["digits"]) == 3
            assert (await client.get("/step")).json() == {"global_step": 0}


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"steps": 1}', "\0"]
    + [f'{{"steps": [1], "losses": {losses}, "accuracies": [1]}}' for losses in ('["x"]', "[]")],
)
def test_an_unreadable_history_is_discarded(tmp_path: Path, text: str) -> None:
    (tmp_path / "history.json").write_text(text)
    assert TrainingHistory.load(tmp_path / "history.json") == TrainingHistory()
    assert TrainingHistory.load(tmp_path) == TrainingHistory()


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT cannot be sent to one process on Windows")
def test_ctrl_c_stops_the_demo_with_a_checkpoint(tmp_path: Path) -> None:
    command = ["-m", "aioflow", "demo", "--steps", "1000000", "--dir", str(tmp_path)]
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "120"}
    with program(*command, stderr=subprocess.STDOUT, env=environment) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "Serving" in line)
        found = re.search(r"http://[\d.:]+", line)
        assert found is not None
        while not httpx.get(f"{found[0]}/step", trust_env=False, timeout=SECONDS).json()["global_step"]:
            pass  # no step is done yet
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, rest
    assert "Stopped" in rest
    assert "Traceback" not in rest
    assert af.train.latest_checkpoint(str(tmp_path)) is not None


async def test_cancelling_the_demo_writes_a_checkpoint(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as tg:
        task = tg.create_task(run_demo(DemoOptions(10**6, tmp_path, 0), Console(file=io.StringIO())))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert af.train.latest_checkpoint(str(tmp_path)) is not None
