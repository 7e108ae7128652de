"""What is in a folder, all of it of one version, whoever replaces the model meanwhile.

The files of a version are there for as long as a reader on this machine shows that he is using it (`Place.keep`). In a
store nobody can tell, and the files of the version before the present one stay; so what the graph is going to open by
its name, the assets, is copied to this machine.
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

from aioflow.errors import AbortedError, DataLossError, OpError
from aioflow.graph.arrays import Array
from aioflow.graph.graphdef import GraphDef
from aioflow.saved.constants import with_constants
from aioflow.saved.manifest import ASSETS, MANIFEST, Manifest, StoredFile
from aioflow.saved.ops_used import without_new_attributes
from aioflow.saved.places import Place
from aioflow.saved.stored_weights import StoredWeights
from aioflow.work.forking import generation, not_forked

__all__ = ["Contents", "open_folder"]

_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class Contents:
    """One version.

    Attributes:
        weights: Whose file is open; None where there are none.
        assets: For each tensor that is a path, the path of a file of this machine.
    """

    manifest: Manifest
    definition: GraphDef
    weights: StoredWeights | None
    assets: Mapping[str, str]


def open_folder(place: Place, kept: ExitStack) -> Contents:
    """The manifest, the definition, the weights and the assets of a folder, which are there as they were written.

    Args:
        kept: Keeps the version in the folder until it is left.

    Raises:
        AbortedError: the model is replaced faster than it can be read.
        OpError: as `load`.
    """
    data = place.manifest()
    for _ in range(_ATTEMPTS):
        with ExitStack() as attempt:
            failure: OpError | None = None
            try:
                found = _opened(place, data, attempt)
            except OpError as error:
                failure = error
            latest = place.manifest()
            if latest == data:
                if failure is not None:
                    raise failure
                kept.push(attempt.pop_all())
                return found
            data = latest
    raise AbortedError(
        f"the model in {place.name} is replaced again and again",
        expected="a version that stays while it is read",
        actual=f"{_ATTEMPTS} versions",
    )


def _opened(place: Place, data: bytes, kept: ExitStack) -> Contents:
    manifest = Manifest.from_bytes(data, place.path(MANIFEST))
    place.keep(manifest.graph.name, kept)
    definition = _definition(place, manifest.graph, GraphDef.from_bytes)
    ops = _definition(place, manifest.ops, GraphDef.from_json)
    assets = _assets(place, manifest, kept)
    weights = StoredWeights(place, manifest.weights) if manifest.weights else None
    definition = with_constants(definition, weights.constant if weights else partial(_missing, place))
    return Contents(manifest, without_new_attributes(definition, ops), weights, assets)


def _missing(place: Place, name: str) -> Array:
    raise DataLossError(f"there are no weights in {place.name}", expected=f"constant {name}", actual="none")


def _definition(place: Place, file: StoredFile, read: Callable[[bytes], GraphDef]) -> GraphDef:
    data = place.read(file)
    try:
        return read(data)
    except OpError as error:
        error.message = f"{place.path(file.name)}: {error.message}"
        raise


def _assets(place: Place, manifest: Manifest, kept: ExitStack) -> dict[str, str]:
    files = {asset.file.name: asset.file for asset in manifest.assets}
    if not place.is_remote:
        for file in files.values():
            place.check(file)
        return {asset.tensor: place.path(asset.file.name) for asset in manifest.assets}
    if not files:
        return {}
    with not_forked():  # see `aioflow_numpy.compiled.process`: a lock of Python's is taken
        folder = tempfile.mkdtemp(prefix="aioflow-assets-")
    kept.callback(_remove, folder, generation())
    paths = {name: os.path.join(folder, name.removeprefix(f"{ASSETS}/")) for name in files}
    for name, file in files.items():
        place.fetch(file, paths[name])
    return {asset.tensor: paths[asset.file.name] for asset in manifest.assets}


def _remove(folder: str, process: int) -> None:
    if process == generation():  # otherwise this is a child, and the folder its parent's
        shutil.rmtree(folder, ignore_errors=True)
