"""Tests that /openapi.json is complete, and that responses conform to it, as schemathesis checks independently."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from aioflow.serve import Repository
from tests.serve.folders import SECONDS, rows, save_model, scaled
from tests.serve.service import ServerOptions, asked, create_app, httpx, serving
from tests.support.processes import program_on_loop

from starlette.routing import Route  # isort: skip  # after the import that skips these tests if it fails

ROOT = Path(__file__).parents[2]


async def test_document_lists_all_routes_and_schemas(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", scaled(2))
    async with serving({"m": tmp_path / "m"}) as (server, client):
        document = (await client.get("/openapi.json")).json()
        found = [route for route in server.app.routes if isinstance(route, Route) and route.include_in_schema]
        routes = {(method.lower(), route.path) for route in found for method in (route.methods or set()) - {"HEAD"}}
        assert {(method, path) for path, each in document["paths"].items() for method in each} == routes
        identifiers = [each["operationId"] for path in document["paths"].values() for each in path.values()]
        assert len(set(identifiers)) == len(identifiers)
        named = set(re.findall(r"#/components/schemas/(\w+)", str(document["paths"]) + str(document["components"])))
        assert named == set(document["components"]["schemas"])
        assert (await client.post("/v2/models/m/infer", json=asked(rows()))).status_code == 200
        assert (await client.post("/v2/repository/index", json={"ready": "yes"})).status_code == 400


async def test_document_says_what_each_endpoint_does_and_its_statuses_mean() -> None:
    transport = httpx.ASGITransport(create_app(Repository({}), token="secret", admin_token="other"))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        found = await client.get("/openapi.json", headers={"Authorization": "Bearer secret"})
    paths = {path: each for path, each in found.json()["paths"].items() if not path.startswith("/page/")}
    summaries = [operation["summary"] for each in paths.values() for operation in each.values()]
    assert len(set(summaries)) == len(summaries)
    for each in paths.values():
        for operation in each.values():
            for status, response in operation["responses"].items():
                assert response["description"] != HTTPStatus(int(status)).phrase
    load = paths["/v2/repository/models/{model}/load"]["post"]["responses"]
    assert "may not load or unload" in load["403"]["description"]
    assert "queue is full" in load["429"]["description"]
    assert "fit the model" not in paths["/v2"]["get"]["responses"]["400"]["description"]


async def test_document_marks_the_routes_that_need_no_token() -> None:
    app = create_app(Repository({}), token="secret")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/openapi.json")).status_code == 401
        found = await client.get("/openapi.json", headers={"Authorization": "Bearer secret"})
        for path, operations in found.json()["paths"].items():
            for method, operation in operations.items():
                answered = await client.request(method, path.replace("{", "").replace("}", ""))
                assert (answered.status_code == 401) == ("security" in operation), path


async def test_schemathesis_finds_no_violation(tmp_path: Path) -> None:
    """Check for server errors, undocumented statuses or forms, and accepted requests that the document excludes."""
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed: tox -e serving")
    for name in ("m", "other"):
        await save_model(tmp_path / name, scaled(2))
    models = {"m": tmp_path / "m", "other": tmp_path / "other"}
    async with serving(models, where=ServerOptions(port=0, token="secret")) as (server, _):
        await _checked(f"{server.url}/openapi.json", tmp_path)


async def _checked(url: str, folder: Path) -> None:
    """Run schemathesis in a folder of its own, where it may store its findings."""
    program = ["-m", "schemathesis.cli", "run", url, "--header", "Authorization: Bearer secret"]
    # A model may reject what the document allows, since the document does not know its shapes.
    options = ["--checks", "all", "--exclude-checks", "positive_data_acceptance", "--phases", "coverage,fuzzing"]
    # An invalid request may also be too large, which is reported first.
    statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, "5xx"]
    settings = f"[checks]\nnegative_data_rejection.expected-statuses = {json.dumps(statuses)}\n"
    (folder / "schemathesis.toml").write_text(settings, encoding="utf-8")
    more = ["--max-examples", "20", "--seed", "1", "--no-color", "--continue-on-failure", "--warnings", "off"]
    async with program_on_loop(
        *program,
        *options,
        *more,
        cwd=folder,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.serve.schemathesis_hooks", "PYTHONPATH": str(ROOT)},
        stderr=asyncio.subprocess.STDOUT,
    ) as process:
        async with asyncio.timeout(SECONDS * 3):
            said, _ = await process.communicate()
    text: Any = said.decode()
    assert process.returncode == 0, text
    assert "No issues found" in text, text
