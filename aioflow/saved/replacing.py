"""One version of a model takes the place of another: by the manifest, at once, beside any number of readers.

A version is marked as in use by whoever holds its graph's file (`Place.keep`), and its files stay then; the manifest of
the next one says so (`replaced`), and the next save takes away what nobody uses any more. Where there are no locks to
tell that, as in a store, only what was replaced before the present save goes.
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
from aioflow.saved.places import Place

__all__ = ["being_written", "replace_manifest", "unless_it_fails"]

_BEING_WRITTEN: Final = re.compile(r"\.version(-[0-9a-f]{12})\.[0-9a-f]{12}\.tmp")


def replace_manifest(place: Place, manifest: Manifest) -> None:
    """Let a version whose files are there take the place of the present one, if there is one."""
    store, name = place.store(MANIFEST)
    with nullcontext() if place.is_remote else locked_folder(Path(place.name)):
        before = _manifest_before(place)
        present = None if before is None else tuple(before.files)
        earlier = () if before is None else tuple(names for names in before.replaced if _is_there(place, names))
        left = earlier if present is None else (*earlier, present)
        store.put(name, replace(manifest, replaced=left).to_bytes())
        for names in left:
            # What cannot be deleted stays in the list, and the next save tries again: the model has been saved.
            with suppress(OpError):
                _forget(place, names, was_present=names is present)


def _manifest_before(place: Place) -> Manifest | None:
    try:
        return Manifest.from_bytes(place.manifest(), place.path(MANIFEST))
    except OpError:
        return None  # there is none; or a damaged one is replaced, and nothing is known of its files


def _is_there(place: Place, names: Sequence[str]) -> bool:
    store, graph = place.store(names[0])
    return store.size(graph) is not None


def _forget(place: Place, names: Sequence[str], was_present: bool) -> None:
    """Delete the files of a version, unless somebody is using it."""
    store, graph = place.store(names[0])
    with store.held([graph], alone=True) as mine:
        if graph not in mine or (was_present and not mine[graph]):
            return
        for name in reversed(names):  # the graph's, by which the rest is found, last
            if name.endswith(CHECKPOINT_MANIFEST):
                remove_checkpoint(place.path(name.removesuffix(CHECKPOINT_MANIFEST)))
            else:
                folder, last = place.store(name)
                folder.remove(last)


@contextmanager
def being_written(place: Place, mark: str) -> Iterator[None]:
    """A block that writes a version whose files have `mark` in their names. It removes what killed saves have left.

    A file in the folder, locked for as long as the process lives, tells later saves of it; in a store nothing does.
    """
    if place.is_remote:
        yield
        return
    folder = Path(place.name)
    with suppress(OSError):  # it is only for tidiness
        for name in os.listdir(folder):
            if (match := _BEING_WRITTEN.fullmatch(name)) and has_writer(folder / name) is False:
                if not _may_be_present(place, match[1]):
                    _remove_version(place, match[1])
                (folder / name).unlink(missing_ok=True)
    with file_errors(folder), temporary_file(folder / f"version{mark}"):
        yield


@contextmanager
def unless_it_fails(place: Place, mark: str) -> Iterator[None]:
    """A block that writes a version whose files have a mark in their names: they go if it does not come to its end."""
    had_assets = not place.is_remote and os.path.lexists(place.path(ASSETS))
    try:
        yield
    except BaseException:
        if not _may_be_present(place, mark):
            _remove_version(place, mark, keeps_assets=had_assets)
        raise


def _remove_version(place: Place, mark: str, keeps_assets: bool = False) -> None:
    for folder in (ASSETS, ""):
        _remove_marked(place, folder, mark)
    if not place.is_remote and not keeps_assets:
        with suppress(OSError):  # there is none, or other files are in it
            os.rmdir(place.path(ASSETS))


def _may_be_present(place: Place, mark: str) -> bool:
    """Whether the manifest speaks of that version; also where that cannot be told."""
    try:
        return mark.encode() in place.manifest()
    except NotFoundError:
        return False
    except OpError:
        return True


def _remove_marked(place: Place, folder: str, mark: str) -> None:
    # Beside the error that is on its way it is no other one that something cannot be taken away.
    with suppress(OpError):
        store, _ = place.store(f"{folder}/" if folder else "")
        for name in store.names():
            if mark in name:
                with suppress(OpError):
                    store.remove(name)
