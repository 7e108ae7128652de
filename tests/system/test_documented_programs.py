"""Tests that the programs of docs/serving.md serve a model."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import numpy as np
import pytest

import aioflow as af
from aioflow.cli.serve import add_parser
from aioflow.cli.serve_options import given_options
from tests.support.follow import blocks
from tests.support.processes import SECONDS, program

pytest.importorskip("prometheus_client", reason="needs the extra `serve`")

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "serving.md"
(CONFIGURATION,) = (block.code for block in blocks(PAGE) if block.language == "toml")
GENERATOR, PROGRAM, APP, MOUNTED = (block.code for block in blocks(PAGE) if block.language == "python")


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """Return a folder that contains the page's model."""
    with af.Graph().as_default():
        x = af.placeholder(af.float32, [None, 3], name="x")
        signature = af.saved.Signature({"x": x}, {"y": x * 2.0})
        async with af.Session() as session:
            await af.saved.save(session, tmp_path / "models" / "digits", signature)
    return tmp_path


@contextlib.contextmanager
def _served(folder: Path, *command: str, stderr: int = subprocess.STDOUT) -> Iterator[str]:
    """Run a program, and yield the first address that it prints."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with program(*command, cwd=folder, env=environment, stderr=stderr) as process:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if found := re.search(r"http://[\d.:]+", line):
                yield found[0]
                return
        raise AssertionError("".join(seen))


def _wait_until_ready(client: httpx.Client, url: str) -> None:
    end = time.monotonic() + SECONDS
    while (ready := client.get(f"{url}/v2/health/ready")).status_code == 503 and time.monotonic() < end:
        pass  # the model is still loading
    assert ready.status_code == 200


def _ask(url: str, token: str = "") -> None:
    tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(timeout=SECONDS, trust_env=False, headers=headers) as client:
        _wait_until_ready(client, url)
        answer = client.post(f"{url}/v2/models/digits/infer", json={"inputs": [tensor]})
        assert answer.status_code == 200, answer.text
        np.testing.assert_array_equal(answer.json()["outputs"][0]["data"], [2, 4, 6])


@pytest.fixture
async def configured(folder: Path) -> Path:
    """Return a folder that contains the page's configuration file and all that it names."""
    pytest.importorskip("onnx", reason="needs the extra `onnx`")
    for name, text in (("token", "secret"), ("admin", "another-secret")):
        (folder / name).touch(0o600)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "serve.toml").write_text(CONFIGURATION, encoding="utf-8")
    with af.Graph().as_default():
        x = af.placeholder(af.float32, [None, 3], name="x")
        y = af.identity(x * 3.0, name="y")
        async with af.Session() as session:
            await af.interop.onnx.export(session, {"y": y}, {"x": x}, path=folder / "mobilenet.onnx")
    return folder


def test_configuration_file_serves_the_model(configured: Path) -> None:
    command = ["-m", "aioflow", "serve", "--config", "serve.toml", "--port", "0"]
    # The access log goes elsewhere: nothing reads the pipe any more, and printing would block once it is full.
    with _served(configured, *command, stderr=subprocess.DEVNULL) as url:
        _ask(url, "secret")


def test_commented_keys_of_the_configuration_file_are_valid(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(configured)
    text = re.sub(r"(?m)^# (?=[a-z-]+ = )", "", CONFIGURATION)
    assert text.count("tls-") == CONFIGURATION.count("# tls-") == 2
    Path("serve.toml").write_text(text, encoding="utf-8")
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    found = given_options(parser.parse_args(["serve", "--config", "serve.toml"]), {})
    assert (found.processes, found.where.token, found.where.tls_cert) == (4, "secret", Path("cert.pem"))
    assert found.where.admin_token == "another-secret"
    assert found.options["digits"].timeout == 2.0
    assert found.options["mobile"].timeout == 10.0


def test_program_saves_a_model_that_generates_tokens(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(GENERATOR, encoding="utf-8")
    with program("program.py", cwd=tmp_path) as process:
        assert process.wait(SECONDS) == 0
    asked = {"text_input": "Hello", "parameters": {"max_tokens": 7}}
    with (
        _served(tmp_path, "-m", "aioflow", "serve", "letters=models/letters", "--port", "0") as url,
        httpx.Client(timeout=SECONDS, trust_env=False) as client,
    ):
        _wait_until_ready(client, url)
        answer = client.post(f"{url}/v2/models/letters/generate", json=asked)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["tokens"]) == 7


def test_standalone_program_serves_the_model(folder: Path) -> None:
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    with _served(folder, "program.py") as url:
        _ask(url)


@pytest.mark.parametrize(("code", "below"), [(APP, ""), (MOUNTED, "/models")], ids=["the application", "mounted"])
def test_asgi_application_serves_the_model(folder: Path, code: str, below: str) -> None:
    (folder / "service.py").write_text(code, encoding="utf-8")
    with _served(folder, "-m", "uvicorn", "service:app", "--port", "0") as url:
        _ask(url + below)
