"""Helpers that alter saved models and update all digests, so that only the content is wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aioflow.formats import manifests
from aioflow.formats.graphs import documents
from aioflow.saved.manifest import MANIFEST, sealed

__all__ = ["Change", "change_checkpoint", "change_graph", "change_manifest", "change_ops", "put", "read_manifest"]

Change = Callable[[Any], None]  # changes a document in place


def read_manifest(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
    content.pop("sha256", None)
    return content


def change_manifest(folder: Path, change: Change) -> None:
    content = read_manifest(folder)
    change(content)
    (folder / MANIFEST).write_bytes(sealed(content))


def put(folder: Path, entry: str, data: bytes) -> None:
    """Replace the file of an entry of the manifest, and update the entry's size and digest."""
    described: dict[str, Any] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / read_manifest(folder)[entry]["name"]).write_bytes(data)
    change_manifest(folder, lambda content: content[entry].update(described))


def change_graph(folder: Path, change: Change) -> None:
    document = documents.from_bytes((folder / read_manifest(folder)["graph"]["name"]).read_bytes())
    change(document)
    put(folder, "graph", documents.to_bytes(document))


def change_ops(folder: Path, change: Change) -> None:
    document = json.loads((folder / read_manifest(folder)["ops"]["name"]).read_bytes())
    change(document)
    put(folder, "ops", json.dumps(document).encode())


def change_checkpoint(folder: Path, change: Change) -> None:
    path = folder / read_manifest(folder)["weights"]["name"]
    content = json.loads(path.read_bytes())
    content.pop("sha256")
    change(content)
    put(folder, "weights", manifests.sealed(content))
