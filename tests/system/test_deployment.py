"""Tests of docs/deployment.md: its manifests are valid, its commands are accepted, and its nginx forwards requests."""

from __future__ import annotations

import argparse
import configparser
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml

import aioflow as af
from aioflow.cli import serve, serve_options, worker_options
from tests.support.follow import blocks
from tests.support.processes import SECONDS, process, program

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGE: Final = DOCS / "deployment.md"


def _block(language: str) -> str:
    (found,) = (block.code for block in blocks(PAGE) if block.language == language)
    return found


def _manifests(page: Path) -> list[Any]:
    texts = [block.code for block in blocks(page) if block.language == "yaml"]
    return [each for text in texts for each in yaml.safe_load_all(text) if "ray.io" not in each["apiVersion"]]


def _options(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="aioflow")
    serve.add_parser(parser.add_subparsers())
    return parser.parse_args(words)


def test_commands_of_the_page_are_accepted() -> None:
    (image,) = re.findall(r"^CMD (\[.*\])$", _block("dockerfile"), re.MULTILINE)
    (docker,) = re.findall(r"aioflow-engine (aioflow serve .*)", _typed())
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's keys are case-sensitive
    unit.read_string(_block("ini"))
    deployment, _ = _manifests(PAGE)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    pod = container["command"] + container["args"]
    started = shlex.split(unit["Service"]["ExecStart"])
    for words in (json.loads(image), shlex.split(docker), pod, [Path(started[0]).name, *started[1:]]):
        assert words[0] == "aioflow"
        assert [name for name, _ in _options(words[1:]).models] == ["digits"]
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = _options(pod[1:]).drain_seconds
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= pause + drain + 10


def _typed() -> str:
    """Return the shell commands of the page, each on one line."""
    return "".join(block.code for block in blocks(PAGE) if block.language == "sh").replace("\\\n", " ")


def test_containers_have_time_to_drain() -> None:
    (serve_seconds, worker_seconds) = map(float, re.findall(r"docker run .*--stop-timeout (\d+)", _typed()))
    assert serve_seconds >= serve_options.DRAIN_SECONDS + 10
    assert worker_seconds >= worker_options.DRAIN_SECONDS + 5


@pytest.mark.parametrize("page", ["deployment.md", "cluster.md"])
def test_manifests_are_valid_in_kubernetes(page: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="tox -e serving installs the schemas of Kubernetes")
    found = _manifests(DOCS / page)
    assert found
    for manifest in found:
        schemas.validate(manifest, schemas.latest_version(), strict=True)


@pytest.mark.parametrize("page", ["deployment.md", "cluster.md"])
def test_pods_have_few_rights_and_probes_and_keep_their_secret(page: str) -> None:
    pods = [found["spec"]["template"]["spec"] for found in _manifests(DOCS / page) if found["kind"] != "Service"]
    assert pods
    for pod in pods:
        rights = pod["securityContext"]
        assert rights["runAsNonRoot"] is True
        assert rights["runAsUser"] == rights["fsGroup"] == rights["runAsGroup"] != 0
        assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod["automountServiceAccountToken"]
        (container,) = pod["containers"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
        assert container["resources"]["requests"] == container["resources"]["limits"]
        (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
        assert (mount["name"], mount["readOnly"], volume["secret"]["defaultMode"]) == (volume["name"], True, 0o440)
        words = " ".join(container["command"] + container["args"])
        assert re.search(rf"--(token|secret)-file[ =]{mount['mountPath']}/", words)


def test_service_and_deployment_belong_together() -> None:
    deployment, service = _manifests(PAGE)
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"]
    (container,) = pod["spec"]["containers"]
    assert {each["name"] for each in container["ports"]} >= {each["targetPort"] for each in service["spec"]["ports"]}
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["spec"]["volumes"]}


@pytest.fixture
async def models(tmp_path: Path) -> Path:
    """Return a folder with a model that needs no weights."""
    with af.Graph().as_default():
        x = af.placeholder(af.float32, [None, 3], name="x")
        async with af.Session() as session:
            await af.saved.save(session, tmp_path / "digits", af.saved.Signature({"x": x}, {"y": x * 2.0}))
    return tmp_path


def test_nginx_forwards_requests_and_probes(models: Path) -> None:
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    deployment, _ = _manifests(PAGE)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    probes = {container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    (hosts,) = re.findall(r"^`aioflow serve \S+ (--allow-host .*)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    command = ["-m", "aioflow", "serve", f"digits={models / 'digits'}", "--port", "0", *hosts.split()]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with program(*command, cwd=models, env=environment, stderr=subprocess.STDOUT) as server:
        assert server.stdout is not None
        # Among lines of the log.
        url = next(found[1] for line in server.stdout if (found := re.match(r"listening at (http://[\d.:]+)", line)))
        assert any("is ready" in line for line in server.stdout)
        with httpx.Client(trust_env=False, timeout=SECONDS) as client:
            assert [client.get(url + path).status_code for path in probes] == [200] * len(probes)
            if nginx is None:
                pytest.skip("nginx is not installed")
            port = _free_port()
            text = _block("nginx").replace("127.0.0.1:8000", url.removeprefix("http://")).replace("8080", port)
            (models / "nginx.conf").write_text(_NGINX.format(folder=models, http=text), encoding="utf-8")
            options = ["-p", str(models), "-e", "stderr", "-c", "nginx.conf"]
            with process(nginx, *options, stderr=subprocess.DEVNULL):
                _check_proxy(client, f"http://127.0.0.1:{port}")


_NGINX: Final = """\
daemon off;
pid {folder}/nginx.pid;
events {{}}
http {{
access_log off;
client_body_temp_path {folder}/body;
proxy_temp_path {folder}/proxy;
fastcgi_temp_path {folder}/fastcgi;
uwsgi_temp_path {folder}/uwsgi;
scgi_temp_path {folder}/scgi;
{http}
}}
"""


def _check_proxy(client: httpx.Client, url: str) -> None:
    headers = {"Host": "models.example"}
    end = time.monotonic() + SECONDS
    while True:
        try:
            assert client.get(f"{url}/v2/health/ready", headers=headers).status_code == 200
            break
        except httpx.ConnectError:
            assert time.monotonic() < end, "nginx does not listen"
    tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    answer = client.post(f"{url}/v2/models/digits/infer", headers=headers, json={"inputs": [tensor]})
    assert answer.json()["outputs"][0]["data"] == [2, 4, 6]
    refused = client.post(f"{url}/v2/repository/models/digits/unload", headers=headers, json={})
    assert refused.status_code == 403


def _free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])
