"""Tests of the Dockerfile without Docker: its files, arguments and commands exist, and its health check works."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Final

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

from aioflow.cli import serve
from aioflow.cli.worker_options import make_parser, parse_options
from aioflow.release import DISTRIBUTION
from aioflow.serve import ServerOptions
from tests.net.certificates import Authority
from tests.serve.folders import save_model, scaled
from tests.serve.service import serving
from tests.support.follow import blocks
from tests.support.processes import SECONDS, program

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "deployment.md"
# Comments and line continuations removed.
DOCKERFILE: Final = re.sub(r"^#.*\n|\\\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)


def _instruction(name: str) -> str:
    """Return the arguments of the last instruction of this name."""
    return str(re.findall(rf"^{name} (.*)$", DOCKERFILE, re.MULTILINE)[-1])


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _copy_context(folder: Path) -> None:
    """Copy the files of the checkout that .dockerignore does not exclude."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    first, *rules = [line for line in lines if line and not line.startswith("#")]
    assert first == "*"
    excluded = [rule.removeprefix("**/") for rule in rules if rule.startswith("**/")]
    included = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    assert len(excluded) + len(included) == len(rules)
    for name in included:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns(*excluded))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, target)


def _contents(source: Path, folder: Path) -> dict[str, int]:
    """Build a wheel and return the checksums of its files."""
    [wheel] = WheelBuilder(str(source)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        return {each.filename: each.CRC for each in archive.infolist()}


def test_build_context_suffices_for_the_wheel_and_the_copied_files(tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    _copy_context(context)
    assert _contents(context, tmp_path / "here") == _contents(ROOT, tmp_path / "there")
    copied = re.findall(r"^COPY (?!--from)(\S+) ", DOCKERFILE, re.MULTILINE)
    assert len(copied) == 2
    assert all((context / name).exists() for name in copied)


# ── arguments and commands ────────────────────────────────────────────────────────────────────────────────────────────


def test_extras_and_the_version_of_python_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = (DOCKERFILE, (ROOT / "Dockerfile").read_text("utf-8"), PAGE.read_text("utf-8"))
    found = {extra for text in texts for given in re.findall(r"EXTRAS=([\w,]+)", text) for extra in given.split(",")}
    assert found >= {"serve"}
    assert found <= set(project["optional-dependencies"])
    for version in {given for text in texts for given in re.findall(r"PYTHON=([\d.]+)", text)}:
        assert f"Programming Language :: Python :: {version}" in project["classifiers"]


def test_command_of_the_image_is_accepted_at_the_port_of_the_image() -> None:
    name, *words = json.loads(_instruction("CMD"))
    assert name == "aioflow"
    parser = argparse.ArgumentParser()
    serve.add_parser(parser.add_subparsers())
    options = parser.parse_args(words)
    assert (options.host, str(options.config)) == ("0.0.0.0", "serve.toml")
    assert "port" not in options
    assert _instruction("EXPOSE") == str(ServerOptions().port)


def test_worker_command_of_the_page_is_accepted(tmp_path: Path) -> None:
    typed = "".join(block.code for block in blocks(PAGE) if block.language == "sh").replace("\\\n", " ")
    (text,) = re.findall(r"aioflow-engine python -m aioflow\.worker (.*)", typed)
    (file,) = (b.code for b in blocks(PAGE.with_name("cluster.md")) if b.language == "toml")
    (tmp_path / "cluster.toml").write_text(file, encoding="utf-8")
    (tmp_path / "cluster").write_text("a" * 64, encoding="utf-8")
    (tmp_path / "cluster").chmod(0o600)
    words = [str(tmp_path / Path(word).name) if "/" in word else word for word in shlex.split(text)]
    options = parse_options(make_parser("worker", ""), words, {})
    assert (options.task.job_name, options.task.task_index) == ("worker", 3)
    assert f"AIOFLOW_HEALTH=http://127.0.0.1:{options.status_port}/health " in typed


def test_user_is_that_of_the_manifest() -> None:
    manifests = [b.code for b in blocks(PAGE) if b.language == "yaml"]
    deployment = next(iter(yaml.safe_load_all(manifests[0])))
    context = deployment["spec"]["template"]["spec"]["securityContext"]
    assert _instruction("USER") == f"{context['runAsUser']}:{context['runAsGroup']}"
    assert f"useradd --uid {context['runAsUser']} " in DOCKERFILE
    assert DISTRIBUTION in blocks(PAGE)[1].code.partition("\n")[0], "an image of one's own starts from this one"


# ── the health check ──────────────────────────────────────────────────────────────────────────────────────────────────


def _health(url: str, path: str = "/v2/health/ready") -> int:
    """Run the health check of the image and return its exit status."""
    python, *words = json.loads(_instruction("HEALTHCHECK").partition(" CMD ")[2])
    assert python == "python"
    copies = {target: source for source, target in re.findall(r"^COPY (\S+\.py) (\S+)$", DOCKERFILE, re.MULTILINE)}
    command = [sys.executable, *(str(ROOT / copies[word]) if word in copies else word for word in words)]
    # Requests to the loopback must not use the proxy of a container. Nothing listens at port 9.
    environment = os.environ | {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    environment["AIOFLOW_HEALTH"] = url + path
    return subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, timeout=SECONDS).returncode


@pytest.mark.parametrize("access", ["open", "token", "tls"])
async def test_health_check_succeeds_if_the_service_is_ready(tmp_path: Path, access: str) -> None:
    where = ServerOptions(port=0, token="not-for-probes" if access == "token" else None)
    if access == "tls":
        cert, key, _ = Authority(tmp_path).tls("service", "DNS:models.example").files
        where = ServerOptions(port=0, tls_cert=cert, tls_key=key)
    await save_model(tmp_path / "m", scaled(2.0))
    async with serving({"m": tmp_path / "m"}, None, where) as (server, _):
        assert server.url.startswith("https" if access == "tls" else "http:")
        assert await asyncio.to_thread(_health, server.url) == 0
        assert await asyncio.to_thread(_health, server.url.partition("://")[2]) == 0, "tries HTTP and TLS"
    assert await asyncio.to_thread(_health, server.url) == 1, "nothing listens there"


async def test_health_check_fails_if_a_model_is_not_loaded(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", scaled(2.0))
    async with serving({"m": tmp_path / "m", "bad": tmp_path / "bad"}, None, ServerOptions(port=0, strict=False)) as (
        server,
        _,
    ):
        assert await asyncio.to_thread(_health, server.url) == 1
        assert await asyncio.to_thread(_health, server.url, "/v2/health/live") == 0


def test_health_check_reads_the_status_page_of_a_worker() -> None:
    command = ["-m", "aioflow.worker", "--cluster", "local=127.0.0.1:0", "--status-port", "0"]
    with program(*command, stdin=subprocess.DEVNULL) as worker:
        assert worker.stdout is not None
        lines = [worker.stdout.readline() for _ in range(2)]
        (url,) = re.findall(r"status page of .*(http://[\d.]+:\d+)", lines[1])
        assert _health(url, "/health") == 0
    assert _health(url, "/health") == 1


def test_health_check_requests_the_port_of_the_image() -> None:
    spec = importlib.util.spec_from_file_location("healthcheck", ROOT / "docker" / "healthcheck.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    assert f"127.0.0.1:{_instruction('EXPOSE')}/v2/health/ready" == module.READY
