"""Headless Chromium, driven over its own protocol (DevTools), so that no driver is needed.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import pytest

from tests.support.processes import process_on_loop

__all__ = ["Chromium", "Tab", "chromium"]

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS: Final = 60.0  # timeout, in seconds, of whatever a test waits for
KEYS: Final = {"Tab": 9, "Enter": 13, "Escape": 27}
OPTIONS: Final = (
    *("--headless=new", "--remote-debugging-port=0", "--no-first-run", "--no-default-browser-check", "--disable-gpu"),
    *("--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking", "--no-proxy-server"),
    *("--hide-scrollbars", "--force-color-profile=srgb", "--lang=en"),
)


@asynccontextmanager
async def chromium() -> AsyncIterator[Chromium]:
    """Start a browser with its own profile, or skip the test if none is installed."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("there is no Chromium on this machine")
    options = [*OPTIONS, "--no-sandbox"] if os.geteuid() == 0 else list(OPTIONS)
    nothing, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        where = f"--user-data-dir={profile}"
        async with process_on_loop(program, *options, where, stdout=nothing, stderr=pipe) as process:
            async with asyncio.timeout(SECONDS):
                address = await _address(process)
            async with (
                aiohttp.ClientSession(trust_env=False) as session,
                session.ws_connect(address, max_msg_size=0) as socket,
                asyncio.TaskGroup() as group,
            ):
                browser = Chromium(socket)
                readers = [group.create_task(browser.read()), group.create_task(_drain(process))]
                try:
                    yield browser
                finally:
                    for reader in readers:
                        reader.cancel()


async def _address(process: asyncio.subprocess.Process) -> str:
    said = []
    assert process.stderr is not None
    while line := (await process.stderr.readline()).decode():
        said.append(line)
        if line.startswith("DevTools listening on "):
            return line.split()[-1]
    raise RuntimeError(f"the browser did not start: {''.join(said)}")


async def _drain(process: asyncio.subprocess.Process) -> None:
    """Read and discard the browser's error output, whose pipe would otherwise fill up and block the browser."""
    assert process.stderr is not None
    while await process.stderr.read(1 << 16):
        pass


class Chromium:
    """A connection to a browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tabs: dict[str, Tab] = {}

    async def read(self) -> None:
        """Read the browser's messages; the body of a task."""
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                answer = self._waiting.pop(said["id"])
                if answer.done():
                    continue
                if "error" in said:
                    answer.set_exception(RuntimeError(str(said["error"])))
                else:
                    answer.set_result(said["result"])
            elif said.get("sessionId") in self._tabs:
                self._tabs[said["sessionId"]].hear(said["method"], said["params"])

    async def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(message if session is None else {**message, "sessionId": session})
        async with asyncio.timeout(SECONDS):
            return await answer

    async def open(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> Tab:
        """Open a tab that shows `url`, with its own cookies and storage."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        target = (await self.call("Target.createTarget", url="about:blank", browserContextId=context))["targetId"]
        session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        tab = self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await tab.call(f"{domain}.enable")
        await tab.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await tab.call("Emulation.setEmulatedMedia", features=[scheme])
        await tab.call("Page.navigate", url=url)
        return tab


class Tab:
    """A page in a browser.

    Attributes:
        complaints: Problems of the page: exceptions, errors in the console, and violations of the security policy.
        asked: The addresses of all requests.
    """

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser = browser
        self._session = session
        self.complaints: list[str] = []
        self.asked: list[str] = []

    def hear(self, method: str, parameters: Any) -> None:
        """Record an event of the page."""
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(parameters["args"]))
        elif method == "Log.entryAdded":
            entry = parameters["entry"]
            if (
                entry["level"] in ("error", "warning") and entry["source"] != "network"
            ):  # a response with an error status is no fault
                self.complaints.append(str(entry))
        elif method == "Network.requestWillBeSent":
            self.asked.append(parameters["request"]["url"])

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        return await self._browser.call(method, self._session, **parameters)

    async def resize(self, width: int, height: int) -> None:
        """Set the size of the window."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, once its promise has settled."""
        found = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until an expression is true."""
        looks = f"try {{ if ({condition}) return resolve(true); }} catch {{}}"
        ends = "if (performance.now() > end) resolve(false); else setTimeout(look, 20);"
        look = f"const end = performance.now() + {SECONDS * 500}; const look = () => {{ {looks} {ends} }}; look();"
        found = None
        while found is None:
            try:
                found = await self.value(f"new Promise((resolve) => {{ {look} }})")
            except RuntimeError as error:
                if "navigated" not in str(error) and "context" not in str(error):
                    raise  # otherwise the page has just been left for another
        if not found:
            said = await self.value("document.body.innerText")
            raise AssertionError(f"it never came that {condition}; the page says:\n{said}\n{self.complaints}")

    async def text(self, selector: str) -> str:
        """Return the text of an element."""
        found: str = await self.value(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    async def press(self, key: str) -> None:
        """Press and release a key."""
        code = KEYS.get(key) or ord(key)
        typed = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        press = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code, **typed}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **press)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    async def type(self, text: str) -> None:
        """Insert text at the cursor."""
        await self.call("Input.insertText", text=text)

    async def picture(self) -> bytes:
        """Return the whole page as a PNG."""
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(found["data"])
