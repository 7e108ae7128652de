"""`save`: a folder with a model, which appears whole or not at all.

A new folder is made beside and renamed. One that is replaced, or is in a store, where nothing is renamed, gets files
with names that no others ever had, and then the manifest that speaks of them, at once; what the one before it spoke of
goes.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from aioflow.errors import AlreadyExistsError, OpError, UnimplementedError
from aioflow.formats.checkpoint import remove_checkpoint, write_checkpoint
from aioflow.formats.files import file_errors
from aioflow.formats.manifests import MANIFEST as CHECKPOINT_MANIFEST
from aioflow.formats.stores import store_of
from aioflow.formats.temporary_folders import temporary_folder
from aioflow.graph.argument_kinds import check_kind
from aioflow.graph.arrays import Array
from aioflow.graph.default_session import check_session
from aioflow.graph.graph import Tensor
from aioflow.graph.graphdef import GraphDef
from aioflow.interop.assets import asset_names, assets_of, keeping_assets
from aioflow.interop.model import Signature
from aioflow.saved.asking import calls_of, stored, variables_of
from aioflow.saved.constants import without_constants
from aioflow.saved.manifest import ASSETS, MANIFEST, Asset, Manifest, StoredFile, StoredSignature, Weight
from aioflow.saved.ops_used import ops_used
from aioflow.saved.places import Place, copied
from aioflow.saved.pruning import pruned
from aioflow.session.session import Session
from aioflow.work.threads import in_thread

__all__ = ["save"]

Signatures: TypeAlias = "Mapping[str, Signature | tuple[Mapping[str, Any], Mapping[str, Any]]] | Signature"


@dataclass(frozen=True, slots=True)
class _Content:
    """What goes into a folder.

    Attributes:
        constants: The large ones of the definition, by the names that it has for them.
        assets: The tensors with the files whose paths they have.
    """

    definition: GraphDef
    signatures: Mapping[str, StoredSignature]
    variables: tuple[Weight, ...]
    constants: Mapping[str, Array]
    assets: Mapping[str, str]


async def save(
    session: Session,
    folder: str | os.PathLike[str],
    signatures: Signatures,
    assets: Mapping[Tensor, str | os.PathLike[str]] | None = None,
    overwrite: bool = False,
) -> str:
    """Save a model: what its signatures need of the graph, the values of the variables, and files that the graph reads.

        await aioflow.saved.save(session, "model", aioflow.saved.Signature({"x": x}, {"y": y}))

    The values are those of one moment. Devices are not saved: a model says what is computed, not where.

    Args:
        session: A session of the graph, in which its variables have values.
        folder: A path, or the URL of a folder in a store. Missing folders around it are made.
        signatures: The ways to call it: one `Signature`, which becomes "serving_default", or several by name, each a
            `Signature` or a pair of dictionaries, of inputs and of outputs, from names to tensors.
        assets: For each string scalar that is the path of a file, that file. It is copied into the folder, and the
            scalar is the path of the copy where the model is loaded.
        overwrite: Replace a model that is there. Whoever is loading it meanwhile may find its files gone.

    Returns:
        The folder.

    Raises:
        UnsupportedError: the model needs what only this process has: Python functions, queues, tables, placeholders
            that are no inputs; the error lists all of that.
        AlreadyExistsError: there is something of that name; with `overwrite`, something other than a model.
        InvalidArgumentError: a signature or an asset does not fit the graph.
        UnimplementedError: the path of an asset is the value of a variable, as TensorFlow 2 has it.
        FailedPreconditionError: a variable has no value.
        PermissionDeniedError, ResourceExhaustedError, …: the file system refuses; the error names the file.
    """
    check_session(session)
    check_kind(folder, (str, os.PathLike), "the folder of a model", "a str or a path")
    place, graph = Place(folder), session.graph
    calls = calls_of(graph, signatures)
    paths = assets_of(graph, assets or {})
    await in_thread(_check_free, place, overwrite, effects=False)
    definition = await in_thread(pruned, graph, calls, list(paths), effects=False)
    small, constants = await in_thread(without_constants, definition, effects=False)
    variables, reads = variables_of(graph, definition)
    if keepers := keeping_assets(graph, paths, {variable.name for variable in variables}):
        raise UnimplementedError(
            "the path of an asset is the value of a variable, which would still name the file of before",
            expected="a graph that reads the path itself",
            actual=", ".join(keepers),
        )
    values = await session.run(reads) if reads else []
    content = _Content(
        small,
        {name: stored(signature) for name, signature in calls.items()},
        variables,
        constants,
        {tensor.name: path for tensor, path in paths.items()},
    )
    tensors = dict(zip([variable.name for variable in variables], values, strict=True))
    await in_thread(_write, place, content, tensors, overwrite)
    return place.name


# -- writing: this blocks ---------------------------------------------------------------------------------------------


def _check_free(place: Place, overwrite: bool) -> None:
    """Raise AlreadyExistsError where the folder cannot be written."""
    store, _ = place.store(MANIFEST)
    is_model = store.size(MANIFEST) is not None
    if is_model and not overwrite:
        raise AlreadyExistsError(f"there is a model in {place.name}", expected="nothing there, or overwrite=True")
    if not is_model and not place.is_remote and os.path.lexists(place.name) and not _is_empty(place.name):
        raise AlreadyExistsError(f"{place.name} is there already, and no model", expected="nothing of that name")


def _is_empty(path: str) -> bool:
    with file_errors(path):
        return os.path.isdir(path) and not os.listdir(path)


def _write(place: Place, content: _Content, tensors: Mapping[str, Any], overwrite: bool) -> None:
    _check_free(place, overwrite)
    if not place.is_remote and not os.path.exists(place.path(MANIFEST)):
        with temporary_folder(Path(place.name)) as made:
            _Writer(Place(made.path), "").write(content, tensors)
            made.publish()
        return
    before = _manifest_before(place)
    _Writer(place, f"-{secrets.token_hex(6)}").write(content, tensors)
    if before is not None:
        _forget(place, before)


def _manifest_before(place: Place) -> Manifest | None:
    store, name = place.store(MANIFEST)
    if store.size(name) is None:
        return None
    try:
        return Manifest.from_bytes(place.manifest(), place.path(MANIFEST))
    except OpError:
        return None  # a damaged one is replaced, and nothing is known of its files


def _forget(place: Place, before: Manifest) -> None:
    for name in before.files:
        if before.weights is not None and name == before.weights.name:
            remove_checkpoint(place.path(name.removesuffix(CHECKPOINT_MANIFEST)))
        else:
            store, last = place.store(name)
            store.remove(last)


class _Writer:
    """Writes one model into a folder.

    Args:
        mark: What the names of its files have that others' have not.
    """

    def __init__(self, place: Place, mark: str) -> None:
        self._place = place
        self._mark = mark

    def write(self, content: _Content, tensors: Mapping[str, Any]) -> None:
        graph = self._put(f"graph{self._mark}.aiograph", content.definition.to_bytes())
        ops = self._put(f"ops{self._mark}.json", ops_used(content.definition).to_json().encode())
        tensors = {**tensors, **content.constants}
        weights = self._weights(tensors) if tensors else None
        assets = self._assets(content.assets)
        manifest = Manifest(content.signatures, graph, ops, weights, content.variables, assets)
        store, name = self._place.store(MANIFEST)
        store.put(name, manifest.to_bytes())

    def _put(self, name: str, data: bytes) -> StoredFile:
        store, last = self._place.store(name)
        store.put(last, data)
        return StoredFile(name, len(data), hashlib.sha256(data).hexdigest())

    def _weights(self, tensors: Mapping[str, Any]) -> StoredFile:
        prefix = f"weights{self._mark}"
        write_checkpoint(self._place.path(prefix), tensors)
        store, name = self._place.store(prefix + CHECKPOINT_MANIFEST)
        data = store.read(name)
        return StoredFile(name, len(data), hashlib.sha256(data).hexdigest())

    def _assets(self, assets: Mapping[str, str]) -> tuple[Asset, ...]:
        copies: dict[str, StoredFile] = {}
        for path, final in asset_names(assets.values(), self._mark).items():
            source, name = store_of(path)
            with source.open(name) as file:
                copies[path] = self._copy(f"{ASSETS}/{final}", file)
        return tuple(Asset(tensor, copies[path]) for tensor, path in assets.items())

    def _copy(self, name: str, file: Any) -> StoredFile:
        store, last = self._place.store(name)
        with store.creating(last) as upload:
            size, digest = copied(file, upload.file)
            upload.commit()
        return StoredFile(name, size, digest)
