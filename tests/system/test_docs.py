"""Tests that run the programs of the README and the documentation."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

import aioflow as af
from aioflow.demo.digits import load_digits
from tests.support.processes import SECONDS, end, program

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^(```+|~~~+)[ \t]*([\w-]*)[^\n]*\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)


def _blocks(text: str, language: str) -> Iterator[tuple[int, str]]:
    """Yield (line, code) of each fenced block in that language."""
    for match in _FENCE.finditer(text):
        if match[2] == language:
            yield text.count("\n", 0, match.start()) + 2, match[3]


def _programs(page: Path) -> list[str]:
    return [code for _, code in _blocks(page.read_text(encoding="utf-8"), "python")]


(README,) = _programs(ROOT / "README.md")
SERVICE, TRAIN = _programs(ROOT / "docs" / "web.md")
(EXPORT, *_) = _programs(ROOT / "docs" / "models.md")
(DEVICES,) = _programs(ROOT / "docs" / "howto" / "devices.md")


def _output(code: str, folder: Path) -> tuple[str, str]:
    """Run a program as a user would, from a file, with warnings as errors. Return its stdout and stderr."""
    file = folder / "pasted.py"
    file.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """Return a folder with the `model.onnx` that docs/models.md exports."""
    assert _output(EXPORT, tmp_path) == ("", "")
    return tmp_path


def test_readme_service_answers_with_an_onnx_model(exported: Path) -> None:
    (exported / "service.py").write_text(README, encoding="utf-8")
    with _served(exported) as url, httpx.Client(base_url=url, trust_env=False, timeout=SECONDS) as client:
        answer = client.post("/predict", json=[[1.0, 2.0, 3.0, 4.0]])
        assert (answer.status_code, answer.json()) == (200, [[0.5, 0.5]])
        for body, text in BAD_INPUT.items():
            answer = client.post("/predict", content=body)
            assert (answer.status_code, text in answer.json()["detail"]) == (400, True), answer.text


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Run `service.py` with uvicorn, yield its address, and check that it ends without complaints."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with program(
        *("-m", "uvicorn", "service:app", "--port", "0"), cwd=folder, env=environment, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        yield next(found[0] for line in process.stdout if (found := re.search(r"http://[\d.:]+", line)))
        process.terminate()
        rest, _ = process.communicate(timeout=SECONDS)
    assert "Traceback" not in rest
    assert "Warning" not in rest


def test_program_with_two_devices_logs_placements(tmp_path: Path) -> None:
    printed, logged = _output(DEVICES, tmp_path)
    devices, total = printed.splitlines()
    assert devices.count("device:CPU") == 2
    assert float(total) == pytest.approx(256 * (1 + np.tanh(1.0)))
    assert re.search(r"^MatMul: \(MatMul\): \S+/device:CPU:0$", logged, re.MULTILINE)


def test_web_service_serves_the_model_of_the_training_program(tmp_path: Path) -> None:
    """Check answers to valid requests, and that the errors of malformed ones are explained without internals."""
    printed, logged = _output(TRAIN, tmp_path)
    assert "saved as model/digits" in printed
    assert logged == ""
    (tmp_path / "service.py").write_text(SERVICE, encoding="utf-8")
    with _served(tmp_path) as url, httpx.Client(base_url=url, trust_env=False, timeout=SECONDS) as client:
        digits = load_digits()
        answer = client.post("/predict", json=digits.images[:500].tolist())
        assert answer.status_code == 200
        assert np.mean(np.argmax(answer.json(), axis=1) == digits.labels[:500]) > 0.9
        for body, text in BAD_INPUT.items():
            answer = client.post("/predict", content=body)
            assert answer.status_code == 400, answer.text
            assert text in answer.text
            assert str(tmp_path) not in answer.text
            assert "service.py" not in answer.text
        _begin_a_request_and_go(httpx.URL(url))
        assert client.post("/predict", json=[[0.5] * 64]).status_code == 200


def _begin_a_request_and_go(url: httpx.URL) -> None:
    with socket.create_connection((url.host, url.port or 80)) as client:
        client.sendall(b"POST /predict HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\n[[0.5, ")


BAD_INPUT = {
    "": "Expecting value",
    "[[1, 2]]": "shape is [1, 2]",
    "7": "shape is []",
    '{"rows": []}': "the body is an object",
    '[["a"]]': "the element at [0, 0] is a string",
    f"[[1{'0' * 400}]]": "int too large",
    f"[{[1e39] * 64}]": "too large",
    "[[1e300, 1]]": "too large",
    f"[{'[NaN' + ', NaN' * 63}]]": "NaN is not valid JSON",
    "[" * 200_000: "nested too deeply",
    "[[1], [1, 2]]": "differ in length",
}


def test_documented_programs_pass_the_type_checker(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is of the extra `types`: `tox -e types` runs this")
    extending = "\n\n".join(code for _, code in _blocks((ROOT / "docs" / "extending.md").read_text("utf-8"), "python"))
    programs = [README, SERVICE, TRAIN, DEVICES, *_programs(ROOT / "docs" / "howto" / "coroutines.md"), extending]
    files = [tmp_path / f"program_{number}.py" for number in range(len(programs))]
    for file, code in zip(files, programs, strict=True):
        file.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr


TRAINING_PAGE = ROOT / "docs" / "training.md"
TRAINING = [code for _, code in _blocks(TRAINING_PAGE.read_text("utf-8"), "python")]
SUPERVISED, SUMMARIES, BY_HAND, *PIECES, MIXED, RECOMPUTED, OLDER = TRAINING


def test_supervised_program_logs_progress_and_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    _, logged = _output(SUPERVISED, tmp_path)
    assert re.findall(r"saved step (\d+)", logged) == ["0", "4", "8", "10"]
    assert logged.count("loss = ") == 2
    _, logged = _output(SUPERVISED, tmp_path)
    assert "restoring run/supervised/model.ckpt-10" in logged
    assert "loss = " not in logged


async def test_documented_summaries_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await asyncio.to_thread(_output, SUMMARIES, tmp_path) == ("", "")
    monkeypatch.chdir(tmp_path)
    async with asyncio.timeout(SECONDS):
        await eval(compile(BY_HAND, "training.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {})
    tags: dict[str, Counter[str]] = {}
    for folder in ("summaries", "by_hand"):
        (file,) = (tmp_path / "run" / folder).iterdir()
        events = list(af.train.summary_iterator(file))
        tags[folder] = Counter(value.tag for event in events for value in event.summary.value)
        assert sum(bool(event.graph_def) for event in events) == 1
    assert tags["summaries"] == {"training/loss": 20, "training/weights": 20, "global_step/sec": 1}
    assert tags["by_hand"] == {"square": 10}
    assert events[-1].tagged_run_metadata.tag == "a traced step"


def test_mixed_precision_program_learns(tmp_path: Path) -> None:
    printed, logged = _output(MIXED, tmp_path)
    loss, steps = printed.split()
    assert 0 < float(loss) < 0.5
    assert int(steps) in range(190, 201), "steps that overflow do not count"
    assert logged == ""


def test_killed_tasks_of_the_distributed_program_recover(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "distributed.md").read_text("utf-8")
    (code,) = (code for _, code in _blocks(page, "python") if "sys.argv" in code)
    for port in re.findall(r"(?<=127.0.0.1:)\d+", code):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            code = code.replace(port, str(listener.getsockname()[1]))
    (tmp_path / "train.py").write_text(code.replace("1000", "100"), encoding="utf-8")
    chief_again, chief, other = (shown for _, shown in _blocks(page, "text"))
    with contextlib.ExitStack() as running:

        def begin(*task: str) -> subprocess.Popen[str]:
            return running.enter_context(program("train.py", *task, cwd=tmp_path, stderr=subprocess.STDOUT))

        ps, worker, killed = begin("ps", "0"), begin("worker", "1"), begin("worker", "0")
        _read_until(killed, "INFO:aioflow.train:saved step 0 …", "INFO:aioflow.train:saved step 100 …")
        end(killed)
        restarted = begin("worker", "0")
        _read_until(restarted, *chief_again.splitlines())
        end(ps)
        begin("ps", "0")
        _read_until(restarted, *chief.splitlines())
        _read_until(worker, *other.splitlines())


def _read_until(started: subprocess.Popen[str], *shown: str) -> None:
    """Read the output of a program until these lines have come in this order, with any numbers and anything for `…`."""
    assert started.stdout is not None
    seen = []
    for line in shown:
        pattern = re.sub(r"\d[\d.]*(e\\-\d+)?", r"\\d\\S*", re.escape(line)).replace("…", ".*")
        for printed in started.stdout:
            seen.append(printed)
            if re.match(pattern, printed):
                break
        else:
            raise AssertionError(f"the program has ended before {line!r}:\n{''.join(seen)}")


def test_simulated_cluster_prints_the_documented_output(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "simulation.md").read_text("utf-8")
    ((_, code),) = _blocks(page, "python")
    printed, logged = _output(code, tmp_path)
    assert f"prints `{printed.strip()}`" in page
    assert logged == ""


def test_older_program_stops_at_its_last_step(tmp_path: Path) -> None:
    assert _output(OLDER, tmp_path) == ("", "")
    assert (tmp_path / "run" / "older" / "checkpoint").is_file()
