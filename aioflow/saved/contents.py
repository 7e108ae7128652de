"""The contents of a folder, all of one version even if the model is replaced during the read.

On a local disk, the files of a version remain as long as a reader marks it as in use (`ModelFolder.keep`). A store has
no such marks; there the files of the version before the present one remain. So the assets, which the graph opens by
name, are copied from a store to a local folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from aioflow.concurrency.forking import generation, not_forked
from aioflow.errors import AbortedError, DataLossError, OpError
from aioflow.graph.graphdef import GraphDef
from aioflow.memory.values import Array
from aioflow.saved.manifest import ASSETS, MANIFEST, FileEntry, Manifest
from aioflow.saved.places import ModelFolder
from aioflow.saved.stored_graph import without_new_attributes
from aioflow.saved.stored_weights import StoredWeights, with_constants

_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of one version.

    Attributes:
        manifest: The manifest.
        definition: The graph.
        weights: The weights, with their file open; None if the model has no weights.
        assets: Path of a local file, by the name of the tensor that holds the path.
    """

    manifest: Manifest
    definition: GraphDef
    weights: StoredWeights | None
    assets: Mapping[str, str]


def open_folder(place: ModelFolder, kept: ExitStack) -> Contents:
    """Read the manifest, the definition, the weights and the assets of a folder, and verify them.

    Args:
        place: The folder.
        kept: Keeps the files of the version until this stack is left.

    Raises:
        AbortedError: the model is replaced faster than it can be read.
        OpError: as for `load`.
    """
    data = place.manifest()
    for _ in range(_ATTEMPTS):
        with ExitStack() as attempt:
            failure: OpError | None = None
            try:
                found = _opened(place, data, attempt)
            except OpError as error:
                failure = error
            # An error, or a mix of versions, may come from a replacement meanwhile: then try the latest version.
            latest = place.manifest()
            if latest == data:
                if failure is not None:
                    raise failure
                # Only the attempt that succeeded keeps its marks and copies.
                kept.push(attempt.pop_all())
                return found
            data = latest
    raise AbortedError(
        f"the model in {place.name} is replaced again and again",
        expected="a version that stays while it is read",
        actual=f"{_ATTEMPTS} versions",
    )


def _opened(place: ModelFolder, data: bytes, kept: ExitStack) -> Contents:
    manifest = Manifest.from_bytes(data, place.path(MANIFEST))
    # Marked before the files are read, so that a save meanwhile does not delete them.
    place.keep(manifest.graph.name, kept)
    definition = _definition(place, manifest.graph, GraphDef.from_bytes)
    ops = _definition(place, manifest.ops, GraphDef.from_json)
    assets = _assets(place, manifest, kept)
    weights = StoredWeights(place, manifest.weights) if manifest.weights else None
    definition = with_constants(definition, weights.constant if weights else partial(_missing, place))
    return Contents(manifest, without_new_attributes(definition, ops), weights, assets)


def _missing(place: ModelFolder, name: str) -> Array:
    raise DataLossError(f"there are no weights in {place.name}", expected=f"constant {name}", actual="none")


def _definition(place: ModelFolder, file: FileEntry, read: Callable[[bytes], GraphDef]) -> GraphDef:
    data = place.read(file)
    try:
        return read(data)
    except OpError as error:
        error.message = f"{place.path(file.name)}: {error.message}"
        raise


def _assets(place: ModelFolder, manifest: Manifest, kept: ExitStack) -> dict[str, str]:
    files = {asset.file.name: asset.file for asset in manifest.assets}
    # Local assets are read in place, and stay while the version is marked.
    if not place.is_remote:
        for file in files.values():
            place.check(file)
        return {asset.tensor: place.path(asset.file.name) for asset in manifest.assets}
    if not files:
        return {}
    # tempfile takes a lock of Python's, which must not be held at a fork; see `aioflow_numpy.compiled.process`.
    with not_forked():
        folder = tempfile.mkdtemp(prefix="aioflow-assets-")
    # Before the first copy, so that a failure removes the folder, too.
    kept.callback(_remove, folder, generation())
    paths = {name: os.path.join(folder, name.removeprefix(f"{ASSETS}/")) for name in files}
    for name, file in files.items():
        place.fetch(file, paths[name])
    return {asset.tensor: paths[asset.file.name] for asset in manifest.assets}


def _remove(folder: str, process: int) -> None:
    if process == generation():  # in a forked child, the folder belongs to the parent
        shutil.rmtree(folder, ignore_errors=True)
