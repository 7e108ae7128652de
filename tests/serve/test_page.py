"""The status page without a browser: its numbers, files and access rules; tests/browser/ tests the rendering."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aioflow as af
from aioflow.serve import ModelSource, Repository
from aioflow.serve.lag import LoopLag
from aioflow.serve.memory_limits import RequestAdmission
from aioflow.serve.tally import BOUNDS
from tests.serve.folders import rows, save_model, scaled, summed
from tests.serve.service import ServerOptions, asked, create_app, httpx, serving

from starlette.applications import Starlette  # isort: skip  # after the importorskip of `tests.serve.service`
from starlette.routing import Mount  # isort: skip
from aioflow.serve.page.status import CounterHistory, ServiceStatus, quantile  # isort: skip

SVG = "{http://www.w3.org/2000/svg}"

# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.floats(1e-6, 29.0), min_size=1, max_size=200), st.floats(0.001, 1.0))
def test_quantile_is_in_the_bucket_of_the_true_one(seconds: list[float], q: float) -> None:
    counts, _ = np.histogram(seconds, [0.0, *np.nextafter(BOUNDS, np.inf), np.inf])
    found = quantile(BOUNDS, [int(count) for count in counts], q)
    true = float(np.quantile(seconds, q, method="inverted_cdf"))
    at = int(np.searchsorted(BOUNDS, true))
    assert found is not None
    assert (0.0, *BOUNDS)[at] <= found * (1 + 1e-9)
    assert found <= BOUNDS[at] * (1 + 1e-9)


def test_quantiles_at_the_ends() -> None:
    assert quantile((1.0, 2.0), (0, 0, 0), 0.5) is None
    assert quantile((1.0, 2.0), (0, 4, 0), 0.5) == 1.5
    assert quantile((1.0, 2.0), (0, 4, 0), 1.0) == 2.0
    assert quantile((1.0, 2.0), (1, 0, 9), 0.99) == 2.0  # the upper bound of the last finite bucket


def test_history_counts_the_gain_of_its_window() -> None:
    history = CounterHistory(100.0, seconds=60.0, interval=10.0)
    assert history.gained("m", (5, 1)) == (5, 1)
    for now in range(110, 200, 10):
        history.note(float(now), {"m": (now, 0)})
        history.note(now + 1.0, {"m": (10**6, 0)})  # too soon after the last entry to be kept
    assert history.seconds(190.0) == 60.0
    assert history.gained("m", (200, 7)) == (70, 7)
    assert history.gained("m", (3, 0)) == (3, 0)  # the counter was restarted
    assert history.gained("new", (2,)) == (2,)


def test_history_has_the_gain_of_each_interval() -> None:
    history = CounterHistory(100.0, seconds=60.0, interval=10.0)
    history.note(110.0, {"m": (5, 1)})
    history.note(122.0, {"m": (9, 1)})
    assert list(history.intervals("m", (9, 2), 124.0)) == [(14.0, 10.0, (5, 1)), (2.0, 12.0, (4, 0))]
    # The last interval is not complete.
    assert list(history.intervals("m", (9, 2), 127.0))[-1] == (0.0, 5.0, (0, 1))
    history.note(132.0, {"m": (1, 0)})  # restarted
    assert [gained for _, _, gained in history.intervals("m", (1, 0), 132.0)] == [(5, 1), (4, 0), (1, 0)]
    assert [gained for _, _, gained in history.intervals("new", (3,), 142.0)] == [(0,), (0,), (0,), (3,)]


async def test_status_has_the_history_of_one_version(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", scaled(2))
    async with serving({"m": tmp_path / "m"}) as (server, client):
        now = asyncio.get_running_loop().time()
        clock = [now]
        status = ServiceStatus(server.repository, RequestAdmission(1 << 30), LoopLag(), lambda: clock[0])
        status.document()
        for _ in range(2):
            for _ in range(4):
                assert (await client.post("/v2/models/m/infer", json=asked(rows(3)))).status_code == 200
            clock[0] += 10.0
            history = status.document("m", "1")["history"]
        assert history["age_seconds"] == [10.0, 0.0]
        assert history["requests_per_second"] == [0.4, 0.4]
        assert history["rows_per_batch"] == [3.0, 3.0]
        assert all(0 < p50 <= p99 for p50, p99 in zip(history["p50_seconds"], history["p99_seconds"], strict=True))
        assert history["loop_lag_p99_seconds"] == [None, None]  # not measured here
        for name, version in (("", ""), ("m", "2"), ("no", "1")):
            assert status.document(name, version)["history"]["requests_per_second"] == []
        assert (await client.get("/status?model=m&version=1")).json()["history"]["age_seconds"] == []


async def test_status_lists_the_newest_version_first(tmp_path: Path) -> None:
    for version in (2, 10, 9):
        await save_model(tmp_path / "m" / str(version), scaled(2))
    await save_model(tmp_path / "a", scaled(2))
    sources = {"m": ModelSource(str(tmp_path / "m"), versions=None), "a": tmp_path / "a"}
    async with serving(sources) as (_, client):
        models = (await client.get("/status")).json()["models"]
        assert [(each["name"], each["version"]) for each in models] == [("a", "1"), ("m", "10"), ("m", "9"), ("m", "2")]


async def test_status_counts_the_responses(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", scaled(2))
    await save_model(tmp_path / "sum", summed)
    async with serving({"m": tmp_path / "m", "sum": tmp_path / "sum"}) as (_, client):
        for count in (1, 2, 2):
            assert (await client.post("/v2/models/m/infer", json=asked(rows(count)))).status_code == 200
        assert (await client.post("/v2/models/m/infer", json={})).status_code == 400
        found = (await client.get("/status")).json()
        assert found["server"]["ready"] is True
        model, other = found["models"]
        assert (model["name"], model["version"], model["state"]) == ("m", "1", "READY")
        served = model["served"]
        assert (served["outcomes"]["ok"], served["outcomes"]["refused"]) == (3, 1)
        assert served["recent"]["outcomes"] == served["outcomes"]
        assert sum(served["recent"]["latency"]) == 3
        assert 0 < served["recent"]["p50_seconds"] <= served["recent"]["p99_seconds"]
        assert served["steps"]["sizes"] == [[1, 1], [2, 2]]
        assert (served["steps"]["count"], served["steps"]["rows"]) == (3, 5)
        assert served["steps"]["engine"] == "onnxruntime"
        [signature] = served["signatures"]
        assert (signature["is_default"], signature["is_batched"]) == (True, True)
        assert signature["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
        assert other["served"]["signatures"][0]["is_batched"] is False
        assert other["served"]["recent"]["p50_seconds"] is None
        await client.post("/v2/repository/models/m/unload")
        model = (await client.get("/status")).json()["models"][0]
        assert (model["state"], model["served"]) == ("UNAVAILABLE", None)


# ── the graph ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_graph_is_an_svg(tmp_path: Path) -> None:
    def build() -> object:
        x = y = af.placeholder("float32", [None, 2], name="x")
        with af.name_scope("many"):
            for _ in range(50):
                y = af.tanh(y)
        return {"x": x}, {"y": af.abs(y)}

    await save_model(tmp_path / "m", build)  # type: ignore[arg-type]  # returns mappings
    async with serving({"m": tmp_path / "m"}) as (_, client):
        url = "/status/models/m/versions/1/graph"

        async def drawn(**query: object) -> list[str]:
            response = await client.get(url, params=query)
            assert response.status_code == 200, response.text
            assert response.headers["Content-Type"].startswith("image/svg+xml")
            return [each.get("data-scope", "") for each in ElementTree.fromstring(response.text).iter(f"{SVG}g")]

        assert (await drawn()).count("many") == 1
        opened = await drawn(open="many")
        assert (len(opened) > 50, "many" in opened) == (True, False)
        assert await drawn(open=["no", "m"]) == await drawn(signature="serving_default")
        for path in (f"{url}?signature=no", "/status/models/m/versions/2/graph", "/status/models/no/versions/1/graph"):
            assert (await client.get(path)).status_code == 404, path


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_page_uses_only_its_own_files(tmp_path: Path, path: str) -> None:
    await save_model(tmp_path / "m", scaled(2))
    async with serving({"m": tmp_path / "m"}, where=ServerOptions(port=0, token="secret")) as (_, client):
        page = await client.get(path)
        assert page.headers["Content-Type"] == "text/html; charset=utf-8"
        policy = page.headers["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert re.match(r"default-src 'none'; script-src 'self'; ", policy)
        assert not re.search(r"<style|\son\w+=|\sstyle=|<script(?! type=\"module\" src=)|https?:|//", page.text)
        links = [*re.findall(r'<link [^>]*href="(.*?)"', page.text), *re.findall(r'src="(.*?)"', page.text)]
        scripts = [link for link in links if link.endswith(".js")]
        for script in scripts:  # grows by the imported scripts
            text = (await client.get(f"/{script}")).text
            more = [f"page/{name}" for name in re.findall(r'from "\./(.*?)"', text)]
            scripts += [each for each in more if each not in scripts]
        assert len(scripts) == {"/": 9, "/docs": 5}[path]
        for path in {*links, *scripts}:
            response = await client.get(f"/{path}")
            assert response.status_code == 200, path
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            kind = "text/css" if path.endswith("css") else "text/javascript"
            assert response.headers["Content-Type"].startswith(kind)
        for path in ("/status", "/status/models/m/versions/1/graph", "/page/no.js", "/page/"):
            assert (await client.get(path)).status_code == 401, path


@pytest.mark.parametrize("token", [None, "secret"])
async def test_page_may_be_mounted_at_any_path(tmp_path: Path, token: str | None) -> None:
    await save_model(tmp_path / "m", scaled(2))
    async with Repository({"m": tmp_path / "m"}) as repository:
        await repository.load_all()
        app = Starlette(routes=[Mount("/models", create_app(repository, token=token))])
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost/models/") as client:
            text = (await client.get("")).text
            for link in re.findall(r'(?:href|src)="([^"#]+)"', text):
                assert (await client.get(link)).status_code == 200, link
            found = await client.get("status", headers=headers)
            assert [each["state"] for each in found.json()["models"]] == ["READY"]
