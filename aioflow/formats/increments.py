"""Checkpoints in blocks: a block that is unchanged since an earlier checkpoint is referred to, not written again.

The bytes of each tensor are split into blocks of one size. The manifest has a digest for each block, by which changes
and damage are detected, and the places: runs of consecutive blocks in a file. A checkpoint writes the changed blocks
to one new file, `PREFIX.TOKEN.blocks`, and refers to files of the checkpoint before it for the rest. Reading a
checkpoint therefore needs no manifest but its own. When nearly all of a file has changed, the rest of it is written
again.

Several programs may write to one folder. A writer locks the files that its manifest will refer to. A program that
deletes files locks them exclusively, and then looks for manifests that refer to them. In a store without locks, a
checkpoint whose base was deleted meanwhile is deleted, and its writer raises an error.

All functions block: call them from a thread.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO, Final

import numpy as np

from aioflow.concurrency.stopping import reserve
from aioflow.errors import AbortedError, DataLossError, NotFoundError, OpError
from aioflow.formats.files import read_into
from aioflow.formats.manifests import (
    MANIFEST,
    CheckpointManifest,
    described,
    family_of,
    files_of,
    read_manifest,
    referenced_files,
    sealed,
    step_of,
)
from aioflow.formats.stores import Store
from aioflow.formats.tensor_encoding import PIECE, EncodedTensor, Storable, decode, encode
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.memory.values import Array

_BLOCK: Final = 1 << 17  # bytes; about 500 rows of an embedding, for 32 digits in the manifest
_DIGITS: Final = 32  # digits of a block's SHA-256 in the manifest
_LIVE: Final = 0.25  # a file with a smaller share in use is not referred to again
_FILES: Final = 32  # maximum files to refer to; older ones are not referred to again


@dataclass(frozen=True)
class _Known:
    """A tensor in an earlier checkpoint: a digest and a place (file, offset) for each block."""

    described: CheckpointManifest
    digests: list[str]
    places: list[tuple[int, int]]


def write_increment(store: Store, name: str, tensors: Mapping[str, Storable], base: str | None) -> None:
    """Write a checkpoint, replacing one of the same name, which refers to `base` for unchanged blocks.

    Args:
        store: The folder or store.
        name: Name of the checkpoint.
        tensors: The tensors by name.
        base: An earlier checkpoint of the same folder. Everything is written if it is None or cannot be
            read.

    Raises:
        InvalidArgumentError: a tensor has a dtype that cannot be stored.
        AbortedError: another program has deleted files that the checkpoint refers to.
    """
    # Frees the space of interrupted checkpoints before the new one needs it.
    tidy_blocks(store, name)
    # Read before its manifest is replaced; the files are deleted at the end, if no manifest refers to them.
    replaced = files_if_any(store, name)
    with store.held(files_if_any(store, base) if base else [], alone=False) as there:
        files, known = _earlier(store, base, there)
        fresh = f"{name}.{secrets.token_hex(6)}.blocks"
        with store.creating(fresh) as upload:
            writer = _Writer(upload.file, len(files))
            entries = {n: writer.write(encode(n, v), described(v), known.get(n)) for n, v in sorted(tensors.items())}
            # A checkpoint without changed blocks needs no file of its own.
            if writer.offset:
                upload.commit()
                files = [*files, {"name": fresh, "size": writer.offset}]
            content = {"version": 2, "block": _BLOCK, "step": step_of(name), "files": files, "tensors": entries}
            with forgotten_if_it_fails(store, name, fresh):
                store.put(name + MANIFEST, sealed(_compacted(content)))
        # Without locks, files of the base may have been deleted since `_earlier` looked for them.
        if not all(there.values()):
            _require_files(store, name, content)
    forget_files(store, replaced)


def _require_files(store: Store, name: str, content: CheckpointManifest) -> None:
    """Delete the checkpoint and raise AbortedError if files of its base were deleted."""
    for file in content["files"]:
        if store.size(file["name"]) != file["size"]:
            store.remove(name + MANIFEST)
            forget_files(store, files_of(content))
            raise AbortedError(
                f"another program deleted {store.path(file['name'])} while checkpoint {name} was being written",
                expected="a file of its base checkpoint; only one program may delete checkpoints in a folder",
                actual="none",
            )


class _Writer:
    """A writer of changed blocks to one file.

    Attributes:
        offset: Number of bytes written.
    """

    def __init__(self, file: BinaryIO, number: int) -> None:
        self._file = file
        self._number = number
        self.offset = 0

    def write(self, value: EncodedTensor, what: CheckpointManifest, known: _Known | None) -> CheckpointManifest:
        """Write the changed blocks of a tensor and return its entry in the manifest."""
        digests: list[str] = []
        places: list[tuple[int, int]] = []
        if known is not None and known.described != what:
            # Blocks of another dtype or shape have nothing in common, even if some bytes are equal.
            known = None
        for block in _blocks(value):
            digest = hashlib.sha256(block.data).hexdigest()[:_DIGITS]
            i = len(digests)
            if known is not None and i < len(known.digests) and known.digests[i] == digest and known.places[i][0] >= 0:
                places.append(known.places[i])
            else:
                places.append((self._number, self.offset))
                self._file.write(block.data)
                self.offset += block.nbytes
            digests.append(digest)
        return {**what, "nbytes": value.nbytes, "digests": "".join(digests), "places": _runs(places)}


def _blocks(value: EncodedTensor) -> Iterator[Array]:
    """Yield the bytes in blocks, independently of the pieces in which they come."""
    rest: Array | None = None
    for piece in value.pieces(PIECE):
        data = piece if rest is None else np.concatenate([rest, piece])
        whole = data.nbytes - data.nbytes % _BLOCK
        for start in range(0, whole, _BLOCK):
            yield data[start : start + _BLOCK]
        # A copy, since a view would keep the whole piece in memory until the next one.
        rest = data[whole:].copy() if whole < data.nbytes else None
    if rest is not None:
        yield rest


def _runs(places: list[tuple[int, int]]) -> list[list[int]]:
    """Return [file, offset, count] for each run of consecutive blocks."""
    runs: list[list[int]] = []
    for file, offset in places:
        if runs and runs[-1][0] == file and runs[-1][1] + runs[-1][2] * _BLOCK == offset:
            runs[-1][2] += 1
        else:
            runs.append([file, offset, 1])
    return runs


def _compacted(content: CheckpointManifest) -> CheckpointManifest:
    """Remove unused files from the manifest."""
    used = sorted({run[0] for entry in content["tensors"].values() for run in entry["places"]})
    number = {old: new for new, old in enumerate(used)}
    for entry in content["tensors"].values():
        entry["places"] = [[number[file], offset, count] for file, offset, count in entry["places"]]
    content["files"] = [content["files"][old] for old in used]
    return content


# ── earlier checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────


def _earlier(
    store: Store, base: str | None, there: Mapping[str, bool]
) -> tuple[list[CheckpointManifest], dict[str, _Known]]:
    """Return the files and tensors of an earlier checkpoint.

    Both are empty if the checkpoint is incomplete, or if one of its files is not in `there`.
    """
    if not base:
        return [], {}
    try:
        manifest = read_manifest(store, base)
        if manifest["version"] != 2 or manifest["block"] != _BLOCK:
            return [], {}
        files_of(manifest)
        files = manifest["files"]
        if any(file["name"] not in there or store.size(file["name"]) != file["size"] for file in files):
            return [], {}
        known = {name: _known(entry) for name, entry in manifest["tensors"].items()}
        return files, _worth_keeping(files, known)
    except (NotFoundError, DataLossError, ValueError, LookupError, TypeError, AttributeError):
        return [], {}


def _known(entry: CheckpointManifest) -> _Known:
    text: str = entry["digests"]
    places = [(file, offset + i * _BLOCK) for file, offset, count in entry["places"] for i in range(count)]
    digests = [text[i : i + _DIGITS] for i in range(0, len(text), _DIGITS)]
    if len(digests) != len(places):
        raise ValueError("blocks without a location")
    return _Known({"dtype": entry["dtype"], "shape": entry["shape"]}, digests, places)


def _worth_keeping(files: list[CheckpointManifest], known: dict[str, _Known]) -> dict[str, _Known]:
    """Return the tensors without the places in files that are not referred to again."""
    live = Counter(file for tensor in known.values() for file, _ in tensor.places)
    old = {i for i, file in enumerate(files) if live[i] * _BLOCK < _LIVE * file["size"]}
    # Files are listed from the oldest to the newest.
    old |= set(range(len(files) - _FILES))
    return {
        # A negative file number makes the writer write the block again.
        name: _Known(tensor.described, tensor.digests, [(-1, 0) if p[0] in old else p for p in tensor.places])
        for name, tensor in known.items()
    }


def files_if_any(store: Store, name: str) -> list[str]:
    """Return the names of the files that a checkpoint refers to; [] if it cannot be read."""
    try:
        return files_of(read_manifest(store, name))
    except (OpError, ValueError, LookupError, TypeError):
        return []


def forget_files(store: Store, names: list[str]) -> None:
    """Delete files, except those that a manifest of the folder refers to, or one being written will refer to."""
    _remove(store, names, certain=False)


@contextmanager
def forgotten_if_it_fails(store: Store, name: str, file: str) -> Iterator[None]:
    """Delete a new file if the block, which writes the manifest of its checkpoint, fails."""
    try:
        yield
    except BaseException:
        with suppress(OpError):  # the first error is the cause, and is raised below
            # A store may have written the manifest and reported an error all the same.
            if not _refers(store, name, file):
                store.remove(file)
        raise


def _refers(store: Store, name: str, file: str) -> bool:
    """Return True if the manifest of a checkpoint refers to a file."""
    try:
        return file in files_of(read_manifest(store, name))
    except (NotFoundError, DataLossError, ValueError, LookupError, TypeError):
        return False


def _remove(store: Store, names: list[str], certain: bool) -> None:
    """Delete the files that are neither referred to nor locked.

    Args:
        store: The folder or store.
        names: The files.
        certain: Whether to keep files for which the store cannot tell if they are locked.
    """
    with store.held(names, alone=True) as mine:
        referenced = referenced_files(store) if mine else None  # read under the lock, so no new reference can appear
        if referenced is not None:
            for name, is_told in mine.items():
                if name not in referenced and (is_told or not certain):
                    store.remove(name)


def tidy_blocks(store: Store, name: str) -> None:
    """Delete the files of checkpoints that will certainly never be finished."""
    family = family_of(name)
    blocks = re.compile(rf"{family}\.[0-9a-f]{{12}}\.blocks")
    store.remove_unfinished(rf"{blocks.pattern}|{family}{re.escape(MANIFEST)}")
    left = [file for file in store.names() if blocks.fullmatch(file)]
    referenced = referenced_files(store) if left else None
    if referenced is not None:
        _remove(store, [file for file in left if file not in referenced], certain=True)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Entry:
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    digests: list[str]
    runs: list[tuple[str, int, int]]


class BlockFiles:
    """The tensors of a checkpoint in blocks.

    Attributes:
        path: Path of the manifest.
        tensors: Entry of each tensor, by name.

    Raises:
        DataLossError: the manifest is invalid.
    """

    def __init__(self, store: Store, name: str, manifest: CheckpointManifest) -> None:
        self._store = store
        self.path = store.path(name + MANIFEST)
        try:
            self._block: int = manifest["block"]
            files = files_of(manifest)
            self.tensors = {n: self._entry(entry, files) for n, entry in manifest["tensors"].items()}
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise DataLossError(f"file {self.path} is damaged", expected="a manifest", actual=str(error)) from error

    def _entry(self, entry: CheckpointManifest, files: list[str]) -> _Entry:
        nbytes, text = entry["nbytes"], entry["digests"]
        shape = tuple(entry["shape"])
        runs = [(files[file], offset, count) for file, offset, count in entry["places"]]
        numbers = [nbytes, *shape, *(n for _, offset, count in runs for n in (offset, count))]
        if any(type(n) is not int or not 0 <= n < 1 << 62 for n in numbers) or self._block < 1:
            raise ValueError("an invalid number")
        digests = [text[i : i + _DIGITS] for i in range(0, len(text), _DIGITS)]
        count = -(-nbytes // self._block)
        if len(digests) != count or sum(n for _, _, n in runs) != count:
            raise ValueError("blocks are missing")
        return _Entry(as_dtype(entry["dtype"]), shape, nbytes, digests, runs)

    def read(self, name: str) -> Array:
        """Return one tensor, in an array of its own.

        Raises:
            NotFoundError: a file is missing.
            DataLossError: the bytes are not those that were written.
        """
        entry = self.tensors[name]
        # Before the allocation, since the manifest may be damaged and ask for too much.
        reserve(entry.nbytes)
        data = np.empty(entry.nbytes, np.uint8)
        first = 0
        for file, offset, count in entry.runs:
            with self._store.open(file) as opened:
                opened.seek(offset)
                for i in range(first, first + count):
                    block = data[i * self._block : (i + 1) * self._block]
                    if read_into(opened, block.data) != block.nbytes:
                        raise self._damaged(file, f"{block.nbytes} bytes", "the end of the file")
                    if hashlib.sha256(block.data).hexdigest()[:_DIGITS] != entry.digests[i]:
                        raise self._damaged(file, f"SHA-256 {entry.digests[i]}…", "a different digest")
            first += count
        try:
            return decode(data, entry.dtype, entry.shape)
        except ValueError as error:
            raise self._damaged(self.path, entry.dtype.name, str(error)) from error

    def _damaged(self, file: str, expected: str, actual: str) -> DataLossError:
        path = self._store.path(file) if file != self.path else file
        return DataLossError(f"file {path} is damaged", expected=expected, actual=actual)
