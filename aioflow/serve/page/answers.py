"""The status page as ASGI applications: its files, its data, and pictures of graphs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from starlette.datastructures import QueryParams
from starlette.types import Receive, Scope, Send

from aioflow.serve.page.graph import draw
from aioflow.serve.page.status import Status
from aioflow.serve.repository import Repository
from aioflow.serve.requests import answer, answer_json

_HTML: Final = "text/html; charset=utf-8"
_CSS: Final = "text/css; charset=utf-8"
_SCRIPT: Final = "text/javascript; charset=utf-8"
_SVG: Final = b"image/svg+xml; charset=utf-8"
_FILES: Final = {
    "index.html": ("/", _HTML),
    "style.css": ("/page/style.css", _CSS),
    **{
        name: (f"/page/{name}", _SCRIPT)
        for name in ("page.js", "asking.js", "drawing.js", "formats.js", "models.js", "trying.js")
    },
}
# The browser runs only the scripts of this service, even if data of a model contains markup.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_FILE_HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)
_NOW: Final = (
    (b"content-security-policy", b"default-src 'none'; sandbox"),  # for a picture that is opened on its own
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)


@dataclass(frozen=True, slots=True)
class File:
    """A file of the page."""

    name: str
    path: str
    kind: str
    body: bytes

    @property
    def says(self) -> str:
        """The description of the file in the OpenAPI document."""
        return "The status page" if self.kind == _HTML else f"A file of it: {self.name}"

    async def answer(self, scope: Scope, receive: Receive, to: Send) -> None:
        """Send the file."""
        await answer(to, 200, self.body, self.kind.encode(), _FILE_HEADERS)


class Page:
    """The status page of a service."""

    def __init__(self, repository: Repository, status: Status) -> None:
        self._repository = repository
        self._status = status
        self._drawing = asyncio.Lock()  # one at a time: drawing takes memory for the whole model
        folder = files(__package__)
        self.files: Sequence[File] = [
            File(name, path, kind, folder.joinpath(name).read_bytes()) for name, (path, kind) in _FILES.items()
        ]

    async def status(self, scope: Scope, receive: Receive, to: Send) -> None:
        """Send the data of the page."""
        await answer_json(to, self._status.document())

    async def graph(self, scope: Scope, receive: Receive, to: Send) -> None:
        """Send the placed graph of a version, as SVG."""
        path, query = scope["path_params"], QueryParams(scope["query_string"])
        with self._repository.used(path["model"], path["version"]) as model:
            async with self._drawing:
                picture = await draw(model, query.get("signature"), frozenset(query.getlist("open")))
        await answer(to, 200, picture.encode(), _SVG, _NOW)
