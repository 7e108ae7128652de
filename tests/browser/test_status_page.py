"""The status page in a real browser: its content, its forms, and its escaping of hostile names."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import OpError
from aioflow.serve.page.status import CounterHistory
from tests.browser.chromium import Chromium, chromium
from tests.serve.folders import SECONDS, rows, save_model, scaled, summed
from tests.serve.service import Server, ServerOptions, asked, serving

pytestmark = pytest.mark.browser

HOSTILE: Final = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\u202e&amp;'


@pytest.fixture
async def browser() -> AsyncIterator[Chromium]:
    async with chromium() as found:
        yield found


@pytest.fixture
async def models(tmp_path: Path) -> Mapping[str, Path]:
    return {
        "double": await save_model(tmp_path / "double", scaled(2)),
        "layers": await save_model(tmp_path / "layers", layers),
        "sum": await save_model(tmp_path / "sum", summed),
    }


def layers() -> Any:
    """Return a model of two scopes, each with an inner scope, and more nodes than a picture shows at once."""
    x = af.placeholder("float32", [None, 4], name="x")
    y = x
    for i in range(2):
        with af.name_scope(f"layer{i}"):
            y = af.matmul(y, af.Variable(np.eye(4, dtype=np.float32)))
            with af.name_scope("inner"):
                for _ in range(30):
                    y = af.tanh(y)
    return {"x": x}, {"y": y}


@contextlib.asynccontextmanager
async def partly_serving(models: Mapping[str, Any], **where: Any) -> AsyncIterator[Server]:
    """Start a server some of whose models may fail to load."""
    async with asyncio.timeout(SECONDS), Server(models, where=ServerOptions(port=0, **where)) as server:
        for name in models:
            with contextlib.suppress(OpError):
                await server.repository.load(name)
        yield server


async def test_page_shows_the_models_and_their_statistics(browser: Chromium, models: Any, tmp_path: Path) -> None:
    async with serving(models) as (server, client):
        tab = await browser.open(server.url)
        await tab.until("document.querySelectorAll('#models tr').length === 3")
        assert await tab.text("#readiness") == "ready"
        for _ in range(3):
            assert (await client.post("/v2/models/double/infer", json=asked(rows(2)))).status_code == 200
        assert (await client.post("/v2/models/double/infer", json={})).status_code == 400
        await tab.until("document.querySelector('#outcomes').innerText.includes('answered\\t3\\t3')")
        assert "invalid request\t1\t1" in await tab.text("#outcomes")
        assert await tab.text("#detail-title") == "double, version 1"
        assert (await tab.text("#tensors")).split("\n") == ["input\tx\tFP32\t[any, 3]", "output\ty\tFP32\t[any, 3]"]
        assert (await tab.text("#sizes")).split() == ["2", "rows", "3"]
        assert (await tab.text("#quantiles")).startswith("p50 ")
        assert "aioflow_request_seconds" in await tab.text("#window")
        assert "Requests/s (answered ones)" in await tab.text("#window")
        assert "onnxruntime" in await tab.text("#engine")
        # The page sends requests only to the service, and does not violate its own security policy.
        assert {url.startswith(server.url) for url in tab.asked} == {True}, tab.asked
        assert tab.complaints == []


async def test_phones_show_all_columns_of_the_models(browser: Chromium, models: Any) -> None:
    async with serving(models) as (server, _):
        tab = await browser.open(f"{server.url}/", 390, 844)
        await tab.until("document.querySelectorAll('#models tr').length > 1")
        places = "[...document.querySelector('#models tr').children].map((each) => each.getBoundingClientRect())"
        assert await tab.value(f"{places}.filter(({{width, right}}) => width && right <= 390).length") == 8
        assert await tab.value("document.documentElement.scrollWidth") == 390


async def test_model_can_be_tried(browser: Chromium, models: Any) -> None:
    async with serving(models) as (server, _):
        tab = await browser.open(f"{server.url}/#double/1")
        await tab.until("document.querySelector('#request').value")
        example = json.loads(await tab.value("document.querySelector('#request').value"))
        [tensor] = example["inputs"]
        assert (tensor["shape"], tensor["datatype"], len(tensor["data"])) == ([1, 3], "FP32", 3)
        await tab.value("document.querySelector('#trying button').click()")
        await tab.until("document.querySelector('#answer-title').innerText.startsWith('Answered after')")
        [output] = json.loads(await tab.text("#answer"))["outputs"]
        np.testing.assert_allclose(output["data"], np.array(tensor["data"]) * 2, rtol=1e-6)
        # Next, edit the request by hand and send it with the keyboard; the error is shown.
        await tab.value("document.querySelector('#request').select()")
        await tab.type('{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}')
        await tab.value("document.querySelector('#trying button').focus()")
        await tab.press("Enter")
        await tab.until("document.querySelector('#answer-title').innerText.startsWith('Refused with status 400')")
        assert "another shape than the model" in await tab.text("#answer")
        # The edited request is there again after a visit to another model.
        await tab.value("document.querySelector('a[href=\"#sum/1\"]').click()")
        await tab.until("document.querySelector('#request').value.includes('\"shape\": [1], ')")
        await tab.value("document.querySelector('a[href=\"#double/1\"]').click()")
        await tab.until("document.querySelector('#request').value.includes('\"shape\": [1, 2]')")
        assert tab.complaints == []


async def test_page_of_the_api_describes_and_calls_its_operations(browser: Chromium, models: Any) -> None:
    async with serving(models, where=ServerOptions(port=0, token="secret")) as (server, _):
        tab = await browser.open(f"{server.url}/docs")
        await tab.until("!document.querySelector('#entry').hidden")
        await tab.type("secret")
        await tab.press("Enter")
        await tab.until("document.querySelectorAll('.operation').length > 20")
        assert await tab.value("[...document.querySelectorAll('#content h2')].map((each) => each.innerText)") == [
            "Models", "Service", "TensorFlow Serving", "Monitoring", "Pages",
        ]  # fmt: skip
        infer = "document.getElementById('post_v2_models_model_infer')"
        await tab.value(f"{infer}.open = true")
        await tab.until(f"{infer}.innerText.includes('inputs[].datatype')")
        assert "Timeout in microseconds" in await tab.value(f"{infer}.innerText")
        # The example request fits the model that is there.
        assert await tab.value(f"{infer}.querySelector('form').elements.model.value") == "double"
        await tab.value(f"{infer}.querySelector('form').requestSubmit()")
        await tab.until(f"{infer}.querySelector('[role=status]').innerText === 'Status 200'")
        assert json.loads(await tab.value(f"{infer}.querySelector('[aria-label=Response]').innerText"))["outputs"]
        command = await tab.value(f"{infer}.querySelector('.command').innerText")
        assert f"'{server.url}/v2/models/double/infer' -d '" in command
        assert '-H "Authorization: Bearer $TOKEN"' in command
        # An edited request stays when another model is entered.
        await tab.value(
            f"(() => {{ const form = {infer}.querySelector('form'); const body = form.querySelector('textarea');"
            f"body.value = '{{}}'; body.dispatchEvent(new Event('input', {{bubbles: true}}));"
            f"const model = form.elements.model; model.value = 'sum';"
            f"model.dispatchEvent(new Event('input', {{bubbles: true}}));"
            f"form.requestSubmit(); }})()"
        )
        await tab.until(f"{infer}.querySelector('[role=status]').innerText === 'Status 400'")
        assert "v2/models/sum/infer' -d '{}'" in await tab.value(f"{infer}.querySelector('.command').innerText")
        assert {url.startswith(server.url) for url in tab.asked} == {True}, tab.asked
        assert tab.complaints == []


async def test_charts_show_the_recent_past(browser: Chromium, models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def short_intervals(start: float) -> CounterHistory:
        return CounterHistory(start, 60.0, 0.2)

    monkeypatch.setattr("aioflow.serve.page.status.CounterHistory", short_intervals)
    async with serving(models) as (server, client):
        tab = await browser.open(f"{server.url}/#double/1")
        await tab.until("document.querySelectorAll('#models tr').length === 3")
        assert (await client.post("/v2/models/double/infer", json=asked(rows(2)))).status_code == 200
        await tab.until("document.querySelector('#batch-chart svg').ariaLabel.includes('highest: 2')")
        assert "highest: " in await tab.text("#latency-chart")
        assert "Answered requests per second" in await tab.text("#rate-chart")
        assert await tab.value("document.querySelectorAll('#rate-chart .line:not(.dots)').length") == 1
        assert await tab.value("document.querySelectorAll('#latency-chart .line:not(.dots)').length") == 2
        # The only step is a dot, since there are no values before and after it.
        assert await tab.value("document.querySelector('#batch-chart .dots').getAttribute('d').startsWith('M')")
        assert await tab.value("document.querySelector('#lag-chart .line').getAttribute('d').includes('L')")
        # Another model has no requests yet.
        await tab.value("location.hash = '#layers/1'")
        await tab.until("document.querySelector('#rate-chart').innerText.includes('highest: 0')")
        assert "highest" not in await tab.text("#batch-chart")
        assert tab.complaints == []


async def test_large_numbers_are_shown_exactly(browser: Chromium, tmp_path: Path) -> None:
    """JavaScript's numbers have 53 bits."""

    def build() -> Any:
        x = af.placeholder("int64", [None], name="x")
        return {"x": x}, {"y": x + af.constant(2**62 + 1, "int64")}

    await save_model(tmp_path / "m", build)
    async with serving({"m": tmp_path / "m"}) as (server, _):
        tab = await browser.open(server.url)
        await tab.until("document.querySelector('#request').value")
        await tab.value("document.querySelector('#trying button').click()")
        await tab.until("document.querySelector('#answer').innerText.includes('4611686018427387905')")


async def test_nan_is_refused_with_the_remedy(browser: Chromium, tmp_path: Path) -> None:
    """JSON has no NaN."""

    def build() -> Any:
        x = af.placeholder("float32", [None], name="x")
        return {"x": x}, {"y": x / x}

    await save_model(tmp_path / "m", build)
    async with serving({"m": tmp_path / "m"}) as (server, _):
        tab = await browser.open(server.url)
        await tab.until("document.querySelector('#request').value")
        await tab.value("document.querySelector('#trying button').click()")
        await tab.until("document.querySelector('#answer').innerText.includes('NaN')")
        assert "binary" in await tab.text("#answer")


async def test_graph_is_drawn_and_opened_by_the_keyboard(browser: Chromium, models: Any) -> None:
    async with serving(models) as (server, _):
        tab = await browser.open(f"{server.url}/#layers/1")
        await tab.until("document.querySelector('#request').value")
        await tab.value("document.querySelector('#graph summary').focus()")
        await tab.press("Enter")
        await tab.until("document.querySelectorAll('#picture .scope').length === 2")
        picture = await tab.value("document.querySelector('#picture').textContent")
        assert "layer0/inner" in picture
        assert "device:CPU:0" in picture
        assert "Tanh_3:" not in picture
        await tab.value("document.querySelector('#picture [data-scope=\"layer0/inner\"]').focus()")
        await tab.press("Enter")
        await tab.until("document.querySelectorAll('#picture .scope').length === 1")
        assert "layer0/inner/Tanh_3:" in await tab.value("document.querySelector('#picture').textContent")
        await tab.value("document.querySelector('#opened button').click()")
        await tab.until("document.querySelectorAll('#picture .scope').length === 2")
        assert tab.complaints == []


async def test_picture_zooms_and_boxes_are_found(browser: Chromium, models: Any) -> None:
    async with serving(models) as (server, _):
        tab = await browser.open(f"{server.url}/#layers/1")
        await tab.until("document.querySelector('#request').value")
        await tab.value("document.querySelector('#graph').open = true")
        await tab.until("document.querySelectorAll('#picture .scope').length === 2")
        width = await tab.value("Number(document.querySelector('#picture svg').getAttribute('width'))")
        await tab.value("document.querySelector('#zoom-in').click()")
        assert await tab.value("document.querySelector('#picture svg').getBoundingClientRect().width") == pytest.approx(
            width * 1.25, rel=0.01
        )
        wheel = "new WheelEvent('wheel', {deltaY: 300, ctrlKey: true, cancelable: true, clientX: 9, clientY: 9})"
        await tab.value(f"document.querySelector('#picture').dispatchEvent({wheel})")
        assert await tab.value("Number(document.querySelector('#picture svg').getAttribute('width'))") < width
        await tab.value("document.querySelector('#find').value = 'INNER'")
        await tab.value("document.querySelector('#find').dispatchEvent(new Event('input'))")
        # The two scopes, and the output, which is in the second.
        assert await tab.value("document.querySelectorAll('#picture .found').length") == 3
        assert await tab.text("#matches") == "1 of 3 (30 inside: click the box to open it)"
        await tab.value("document.querySelector('#find').focus()")
        await tab.press("Enter")
        await tab.until("document.querySelector('#matches').innerText.startsWith('2 of 3')")
        assert "layer1/inner" in await tab.value("document.querySelector('#picture .current').textContent")
        assert await tab.value("document.querySelectorAll('#picture .current').length") == 1
        await tab.value("document.querySelector('#find').value = 'nothing like it'")
        await tab.value("document.querySelector('#find').dispatchEvent(new Event('input'))")
        assert await tab.text("#matches") == "no match"
        assert tab.complaints == []


async def test_hostile_names_are_text(browser: Chromium, tmp_path: Path) -> None:
    """Covers names of tensors, signatures and files, and texts of errors."""
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [None, 3], name="x")
        y = x + 1
    async with af.Session(graph=graph) as session:
        one, two = (af.saved.Signature({HOSTILE: x}, {HOSTILE: y}) for _ in range(2))
        await af.saved.save(session, tmp_path / "m", {"serving_default": one, HOSTILE: two})
    folder = tmp_path / HOSTILE.replace("/", "")
    folder.mkdir()
    async with partly_serving({"m": tmp_path / "m", "not": folder}) as server:
        tab = await browser.open(f"{server.url}/#not/")
        await tab.until("document.querySelector('#reason').innerText.includes('onerror')")
        await tab.value("location.hash = 'm/1'")
        await tab.until("document.querySelector('#tensors').innerText.includes('onerror')")
        await tab.value("document.querySelector('#graph').open = true")
        await tab.until("document.querySelector('#picture svg')")
        await tab.value("document.querySelector('#signature').selectedIndex = 1")
        await tab.value("document.querySelector('#signature').dispatchEvent(new Event('change'))")
        await tab.until("document.querySelector('#picture').textContent.includes('onerror')")
        await tab.value("document.querySelector('#trying button').click()")
        await tab.until("document.querySelector('#answer').innerText.includes('onerror')")
        body = json.dumps({"inputs": [{"name": HOSTILE}]})
        await tab.value(f"document.querySelector('#request').value = {json.dumps(body)}")
        await tab.value("document.querySelector('#trying button').click()")
        await tab.until("document.querySelector('#answer-title').innerText.startsWith('Refused')")
        assert "onerror" in await tab.text("#answer")
        await tab.value(f"location.hash = {json.dumps(HOSTILE)}")
        await tab.until("document.querySelector('#detail-title').innerText.startsWith('m')")
        assert await tab.value("window.hacked") is None
        assert await tab.value("document.querySelectorAll('img, script:not([src])').length") == 0
        assert tab.complaints == []


async def test_token_is_requested(browser: Chromium, models: Any) -> None:
    async with partly_serving(models, token="secret") as server:
        tab = await browser.open(server.url)
        await tab.until("!document.querySelector('#entry').hidden")
        assert await tab.value("document.querySelector('#content').hidden")
        for word, then in {
            "wrong": "document.querySelector('#entry-problem').innerText.includes('not the token')",
            "falsch ü": "document.querySelector('#entry-problem').innerText.includes('not the token')",
            "secret": "document.querySelectorAll('#models tr').length === 3",
        }.items():
            await tab.until("document.activeElement.id === 'token' && !document.querySelector('#token').value")
            await tab.type(word)
            await tab.press("Enter")
            await tab.until(then)
        await tab.value("document.querySelector('#trying button').click()")
        await tab.until("document.querySelector('#answer-title').innerText.startsWith('Answered')")
        await tab.value("document.querySelector('#graph').open = true")
        await tab.until("document.querySelector('#picture svg')")
        await tab.call("Page.reload")
        await tab.until("document.querySelectorAll('#models tr').length === 3")
        assert "secret" not in await tab.value("location.href + document.cookie")
        other = await browser.open(server.url)
        await other.until("!document.querySelector('#entry').hidden")


async def test_focus_stays_when_the_page_updates(browser: Chromium, models: Any) -> None:
    async with serving(models) as (server, client):
        tab = await browser.open(server.url)
        await tab.until("document.querySelectorAll('#models a').length === 3")
        await tab.value("document.querySelectorAll('#models a')[1].focus()")
        assert (await client.post("/v2/models/double/infer", json=asked(rows()))).status_code == 200
        await tab.until("document.querySelector('#outcomes').innerText.includes('answered\\t1\\t1')")
        assert await tab.value("document.activeElement.getAttribute('href')") == "#layers/1"
        await tab.press("Enter")
        await tab.until("document.querySelector('#detail-title').innerText === 'layers, version 1'")


async def test_page_reports_a_service_that_is_gone(browser: Chromium, models: Any) -> None:
    async with serving(models) as (server, _):
        tab = await browser.open(server.url)
        await tab.until("document.querySelectorAll('#models tr').length === 3")
    await tab.until("document.querySelector('#problem').innerText.includes('does not answer')")


# For every element with text: the contrast ratio to its background, as WCAG 2.2 defines it (1.4.3).
CONTRASTS: Final = """(() => {
  const channel = (c) => (c <= 0.04045 * 255 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = parts(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!(own || element.value) || !element.checkVisibility() || element.closest("svg, script")) continue;
    const [a, b] = [light(parts(getComputedStyle(element).color)), light(behind(element))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.outerHTML.slice(0, 80)]);
  }
  return found;
})()"""
UNNAMED: Final = """[...document.querySelectorAll("input, select, textarea, button, a, [tabindex], svg")].filter(
  (each) => !(each.labels?.length || each.innerText?.trim() || each.ariaLabel
    || each.getAttribute("aria-labelledby") || each.querySelector(":scope > title"))
).map((each) => each.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize("dark", [False, True])
async def test_page_is_accessible(browser: Chromium, models: Any, tmp_path: Path, dark: bool) -> None:
    """Checks light and dark, wide and narrow pages: contrast, names of controls, and no horizontal overflow."""
    broken = tmp_path / "broken"
    broken.mkdir()
    async with partly_serving({**models, "broken": broken}) as server:
        tab = await browser.open(f"{server.url}/#layers/1", dark=dark)
        await tab.until("document.querySelectorAll('#models tr').length === 4")
        await tab.value("document.querySelector('#trying button').click()")
        await tab.value("document.querySelector('#graph').open = true")
        await tab.until("document.querySelector('#picture svg') && !document.querySelector('#answer').hidden")
        await tab.until("document.querySelector('#sizes tr')")
        for width in (1280, 360):
            await tab.resize(width, 900)
            (tmp_path / f"{'dark' if dark else 'light'}-{width}.png").write_bytes(await tab.picture())
            low = [each for each in await tab.value(CONTRASTS) if each[0] < 4.5]
            assert low == []
            assert await tab.value(UNNAMED) == []
            assert await tab.value("document.documentElement.scrollWidth") <= width
