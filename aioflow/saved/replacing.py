"""Atomic replacement of one version of a model by another, while any number of readers use the old one.

A reader marks a version as in use by a shared lock on the file of its graph (`ModelFolder.keep`). The files of such a
version remain: the next manifest lists them (`replaced`), and the next save deletes those that are no longer in use.
Without locks, as in a store, a save deletes only versions that were replaced by earlier saves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from aioflow.errors import NotFoundError, OpError
from aioflow.formats.checkpoint import remove_checkpoint
from aioflow.formats.files import file_errors
from aioflow.formats.manifests import MANIFEST as CHECKPOINT_MANIFEST
from aioflow.formats.temporary_files import has_writer, temporary_file
from aioflow.formats.temporary_folders import locked_folder
from aioflow.saved.manifest import ASSETS, MANIFEST, Manifest
from aioflow.saved.places import ModelFolder

_BEING_WRITTEN: Final = re.compile(r"\.version(-[0-9a-f]{12})\.[0-9a-f]{12}\.tmp")


def replace_manifest(place: ModelFolder, manifest: Manifest) -> None:
    """Make a version whose files are written the present one, and delete earlier versions that are not in use."""
    store, name = place.store(MANIFEST)
    # Reading and writing the list must not overlap with another save, or one of the two present versions is lost.
    with nullcontext() if place.is_remote else locked_folder(Path(place.name)):
        before = _manifest_before(place)
        present = None if before is None else tuple(before.files)
        earlier = () if before is None else tuple(names for names in before.replaced if _is_there(place, names))
        # The version that is replaced now becomes the last of the list.
        left = earlier if present is None else (*earlier, present)
        # From here on, readers find the new version; deletions come afterwards.
        store.put(name, replace(manifest, replaced=left).to_bytes())
        for names in left:
            # A file that cannot be deleted stays in the list, and the next save tries again. The model has been saved.
            with suppress(OpError):
                _forget(place, names, was_present=names is present)


def _manifest_before(place: ModelFolder) -> Manifest | None:
    try:
        return Manifest.from_bytes(place.manifest(), place.path(MANIFEST))
    except OpError:
        return None  # there is no manifest; or it is damaged, so that the files of its version are unknown


def _is_there(place: ModelFolder, names: Sequence[str]) -> bool:
    store, graph = place.store(names[0])
    return store.size(graph) is not None


def _forget(place: ModelFolder, names: Sequence[str], was_present: bool) -> None:
    """Delete the files of a version unless the version is in use."""
    store, graph = place.store(names[0])
    with store.held([graph], alone=True) as mine:
        # Without locks, readers of the version that was just replaced cannot be detected: keep it until the next save.
        if graph not in mine or (was_present and not mine[graph]):
            return
        for name in reversed(names):  # the graph's file last: it shows that the version exists
            if name.endswith(CHECKPOINT_MANIFEST):
                remove_checkpoint(place.path(name.removesuffix(CHECKPOINT_MANIFEST)))
            else:
                folder, last = place.store(name)
                folder.remove(last)


@contextmanager
def being_written(place: ModelFolder, mark: str) -> Iterator[None]:
    """Mark a version as being written while the block runs. First remove the remains of killed saves.

    A file in the folder, locked for as long as the process lives, shows later saves that this one is running. A store
    has no such file, and its remains are not removed.

    Args:
        place: The folder.
        mark: The part that the names of all files of the version have in common.
    """
    if place.is_remote:
        yield
        return
    folder = Path(place.name)
    with suppress(OSError):  # the cleanup is optional
        for name in os.listdir(folder):
            if (match := _BEING_WRITTEN.fullmatch(name)) and has_writer(folder / name) is False:
                # The save may have been killed after it wrote the manifest.
                if not _may_be_present(place, match[1]):
                    _remove_version(place, match[1])
                (folder / name).unlink(missing_ok=True)
    with file_errors(folder), temporary_file(folder / f"version{mark}"):
        yield


@contextmanager
def unless_it_fails(place: ModelFolder, mark: str) -> Iterator[None]:
    """Remove the files with `mark` in their names if the block fails."""
    had_assets = not place.is_remote and os.path.lexists(place.path(ASSETS))
    try:
        yield
    except BaseException:
        # The block may have failed after it wrote the manifest: then the version is the present one.
        if not _may_be_present(place, mark):
            _remove_version(place, mark, keeps_assets=had_assets)
        raise


def _remove_version(place: ModelFolder, mark: str, keeps_assets: bool = False) -> None:
    for folder in (ASSETS, ""):
        _remove_marked(place, folder, mark)
    if not place.is_remote and not keeps_assets:
        with suppress(OSError):  # it does not exist, or has other files
            os.rmdir(place.path(ASSETS))


def _may_be_present(place: ModelFolder, mark: str) -> bool:
    """Return True if the manifest refers to the version with this mark, or cannot be read."""
    try:
        return mark.encode() in place.manifest()
    except NotFoundError:
        return False
    except OpError:
        return True


def _remove_marked(place: ModelFolder, folder: str, mark: str) -> None:
    # Errors are ignored: the original error is being raised.
    with suppress(OpError):
        store, _ = place.store(f"{folder}/" if folder else "")
        for name in store.names():
            if mark in name:
                with suppress(OpError):
                    store.remove(name)
