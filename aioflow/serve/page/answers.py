"""The status page as ASGI applications: its files, its data, and pictures of graphs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from starlette.datastructures import QueryParams
from starlette.types import Receive, Scope, Send

from aioflow.concurrency.threads import in_thread
from aioflow.errors import NotFoundError
from aioflow.graph.labelled import values_of
from aioflow.interop.model import Signature
from aioflow.observe.picture.outline import outline
from aioflow.observe.picture.svg import as_svg
from aioflow.serve.models import ServedModel
from aioflow.serve.page.status import ServiceStatus
from aioflow.serve.repository import Repository
from aioflow.serve.requests import answer, answer_json

# The picture of a served model's graph, with its nodes on the devices where the plan of its step places them


async def draw(model: ServedModel, signature: str | None, opened: Collection[str]) -> str:
    """Return the SVG of a signature's step. Compiles and draws in a thread.

    Args:
        model: The model.
        signature: The signature; None for the default.
        opened: The scopes whose contents are drawn.

    Raises:
        NotFoundError: there is no such signature.
    """
    name = model.signature_name if signature is None else signature
    if name not in model.calls:
        raise NotFoundError("no such signature", expected=f"one of {sorted(model.calls)}", actual=repr(name)[:60])
    title = f"{model.name}, version {model.version}" + ("" if name == model.signature_name else f": {name}")
    return await in_thread(_drawn, model, model.model.signatures[name], title, opened, effects=False)


def _drawn(model: ServedModel, signature: Signature, title: str, opened: Collection[str]) -> str:
    inputs, outputs = list(signature.inputs.values()), [values_of(each) for each in signature.outputs.values()]
    plan = model.session.plan(outputs, inputs)
    devices = {node.name: device for device, node in plan.placed_nodes()}
    return as_svg(outline(model.model.graph, inputs, outputs, None, devices, opened), title)


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

    def __init__(self, repository: Repository, status: ServiceStatus) -> None:
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
        # The version stays open while it is drawn: its session compiles the plan.
        with self._repository.used(path["model"], path["version"]) as model:
            async with self._drawing:
                picture = await draw(model, query.get("signature"), frozenset(query.getlist("open")))
        await answer(to, 200, picture.encode(), _SVG, _NOW)
