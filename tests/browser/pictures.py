"""`python -m tests.browser.pictures [name …]`: take the pictures of the README and the documentation.

They are in `docs/pictures`: the status page of a server under load and a page of the documentation site, each as a PNG
in a light and a dark variant, and the drawing of a model's graph, which is an SVG. `tox -e pictures` runs this.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import http.server
import io
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
from PIL import Image

import aioflow as af
from aioflow.demo.digits import load_digits
from tests.browser.chromium import SECONDS, Chromium, Tab, chromium
from tests.serve.folders import save_model
from tests.support.processes import program_on_loop

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "docs" / "pictures"
LIMIT: Final = 200_000  # bytes of a picture
CLIENTS: Final = 12


def digits() -> Any:
    """Build a classifier of the digits of `aioflow.demo`."""
    images = af.placeholder("float32", [None, 64], name="images")
    hidden = af.nn.relu(af.matmul(images, af.get_variable("hidden", [64, 128])))
    return {"images": images}, {"probabilities": af.nn.softmax(af.matmul(hidden, af.get_variable("out", [128, 10])))}


def ranking() -> Any:
    """Build a model that scores rows of eight numbers."""
    features = af.placeholder("float32", [None, 8], name="features")
    return {"features": features}, {"scores": af.matmul(features, af.get_variable("scores", [8, 1]))}


def branches() -> Any:
    """Build a network of three parallel branches, for a drawing that is wide as well as tall."""
    images = af.placeholder("float32", [None, 32, 32, 3], name="images")
    outputs = []
    for size in (1, 3, 5):
        with af.name_scope(f"branch{size}"):
            filters = af.get_variable(f"filters{size}", [size, size, 3, 16])
            convolved = af.nn.conv2d(images, filters, strides=1, padding="SAME")
            outputs.append(af.nn.relu(af.nn.bias_add(convolved, af.get_variable(f"biases{size}", [16]))))
    with af.name_scope("head"):
        pooled = af.reduce_mean(af.concat(outputs, 3), [1, 2])
        logits = af.matmul(pooled, af.get_variable("weights", [48, 10]))
    return {"images": images}, {"probabilities": af.nn.softmax(logits, name="probabilities")}


@contextlib.asynccontextmanager
async def loaded_server(folder: Path) -> AsyncIterator[str]:
    """Serve two models to clients that send requests all the time, and yield the address."""
    models = [
        f"digits={await save_model(folder / 'digits', digits)}",
        f"ranking={await save_model(folder / 'ranking', ranking)}",
    ]
    async with program_on_loop("-m", "aioflow", "serve", *models, "--port", "0") as process:
        assert process.stdout is not None
        first = (await process.stdout.readline()).decode()
        url = first[first.index("http://") :].split()[0]
        for _ in models:
            await process.stdout.readline()  # "… is ready"
        async with (
            httpx.AsyncClient(base_url=url, trust_env=False, timeout=SECONDS) as client,
            asyncio.TaskGroup() as group,
        ):
            tasks = [group.create_task(_ask(client, number)) for number in range(CLIENTS)]
            yield url
            for task in tasks:
                task.cancel()


async def _ask(client: httpx.AsyncClient, number: int) -> None:
    chosen = np.random.default_rng(number)
    images = load_digits().images
    while True:
        rows = images[chosen.integers(len(images), size=chosen.integers(1, 4))]
        name, tensor = ("digits", "images") if number % 4 else ("ranking", "features")
        values = rows if number % 4 else rows[:, :8]
        data = {"name": tensor, "shape": list(values.shape), "datatype": "FP32", "data": values.ravel().tolist()}
        await client.post(f"/v2/models/{name}/infer", json={"inputs": [data]})
        await asyncio.sleep(chosen.exponential(0.05))


async def status_page(browser: Chromium, dark: bool) -> bytes:
    """Take the status page of a server under load."""
    with tempfile.TemporaryDirectory() as folder:
        async with loaded_server(Path(folder)) as url:
            tab = await browser.open(f"{url}/#digits/1", 1180, 1010, dark)
            await tab.until("document.querySelectorAll('#models tr').length === 2")
            await asyncio.sleep(125)  # seconds: a point of the charts every ten, and quantiles of thousands of requests
            return await _visible(tab)


async def documentation(browser: Chromium, dark: bool) -> bytes:
    """Take a page of the documentation site."""
    with _served(_site()) as url:
        tab = await browser.open(f"{url}/howto/batch/", 1280, 815, dark)
        await tab.until("document.readyState === 'complete'")
        await asyncio.sleep(1)
        return await _visible(tab)


_BUILD_SECONDS: Final = 600.0

PICTURES: Final = {"status": status_page, "docs": documentation}


async def _visible(tab: Tab) -> bytes:
    """Return what the window shows as a PNG."""
    found = await tab.call("Page.captureScreenshot")
    return base64.b64decode(found["data"])


@functools.cache
def _site() -> str:
    """Build the documentation in a temporary folder and return its path."""
    folder = tempfile.mkdtemp(prefix="aioflow-site")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env=environment,
        check=True,
        timeout=_BUILD_SECONDS,
    )
    return folder


@contextlib.contextmanager
def _served(folder: str) -> Iterator[str]:
    """Serve a folder over HTTP and yield the address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def optimized(png: bytes) -> bytes:
    """Return a picture in fewer bytes.

    Raises:
        ValueError: the picture is larger than `LIMIT` all the same.
    """
    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(out, "PNG", optimize=True)
    if len(out.getvalue()) > LIMIT:
        raise ValueError(f"the picture has {len(out.getvalue()):,} bytes; at most {LIMIT:,} are allowed")
    return out.getvalue()


async def draw_graph() -> None:
    """Draw the graph of a model."""
    with tempfile.TemporaryDirectory() as folder:
        model = await save_model(Path(folder) / "branches", branches)
        file = FOLDER / "graph.svg"
        async with program_on_loop("-m", "aioflow", "graph", str(model), "--depth", "2", "-o", str(file)) as process:
            await process.communicate()
        assert process.returncode == 0


async def main(names: list[str]) -> None:
    """Take the pictures with these names, or all."""
    await draw_graph()
    async with chromium() as browser:
        for name in names or PICTURES:
            for dark in (False, True):
                file = FOLDER / f"{name}-{'dark' if dark else 'light'}.png"
                file.write_bytes(optimized(await PICTURES[name](browser, dark)))
                print(f"{file.relative_to(ROOT)}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
