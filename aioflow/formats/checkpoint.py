"""A checkpoint on disk: `PREFIX.safetensors` with the values, and `PREFIX.manifest.json`, which commits it.

A checkpoint is first written under other names and flushed. Then the manifest is renamed into place, which is the one
step that commits the checkpoint, and the data file after it. A reader that finds the manifest newer than the data file
uses the pending data file beside it. A crash at any moment leaves the old checkpoint or the new one, never a mixture.

That is the form for a folder of this machine. In a store (`formats/stores.py`), where files cannot be renamed, the
data file has a unique name. Checkpoints in blocks are in `formats/increments.py`.

The reader also supports TensorFlow's checkpoints of both versions (`formats/tensor_bundle.py`,
`formats/slice_tables.py`).

All functions block: call them from a thread.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from aioflow.errors import DataLossError, NotFoundError, OpError
from aioflow.formats.allowed_folders import ANYWHERE, AllowedFolders
from aioflow.formats.files import file_errors
from aioflow.formats.increments import (
    BlockFiles,
    files_if_any,
    forget_files,
    forgotten_if_it_fails,
    tidy_blocks,
    write_increment,
)
from aioflow.formats.manifests import (
    MANIFEST,
    CheckpointManifest,
    described,
    family_of,
    files_of,
    read_manifest,
    sealed,
    step_of,
)
from aioflow.formats.slice_tables import SliceTables, plain_prefix, table_files
from aioflow.formats.stores import Folder, Store, StoredFile, is_url, store_of
from aioflow.formats.tensor_bundle import INDEX, TensorBundle
from aioflow.formats.tensor_bundle_writer import SUFFIXES, bundle_files
from aioflow.formats.tensor_encoding import Storable
from aioflow.formats.tensor_file import TensorFile, write_tensors
from aioflow.graph.dtypes import DType
from aioflow.memory.values import Array

_DATA: Final = ".safetensors"
_PENDING: Final = ".safetensors.pending"


def write_checkpoint(
    prefix: str, tensors: Mapping[str, Storable], base: str | None = None, folders: AllowedFolders = ANYWHERE
) -> None:
    """Write a checkpoint, replacing one of the same prefix. Missing directories are made.

    Also deletes incomplete files that killed processes have left of checkpoints of this run, at any step. Writing a
    checkpoint without blocks to a store deletes none.

    Args:
        prefix: A path, or a URL for `fsspec`.
        tensors: Arrays, or objects that are read row by row (`ArrayReader`).
        base: For a checkpoint in blocks: the prefix of an earlier one, whose unchanged blocks are not written again, or
            "" for none. One in another folder is ignored. None for a checkpoint without blocks.
        folders: The folders that it may be in.

    Raises:
        PermissionDeniedError, ResourceExhaustedError, …: the file system refuses; the error names the file.
        InvalidArgumentError: a tensor has a dtype that cannot be stored.
    """
    store, name = store_of(prefix, folders)
    arrays = {key: value if hasattr(value, "rows") else np.asarray(value) for key, value in tensors.items()}
    if base is not None:
        write_increment(store, name, arrays, _in_same_folder(store, base, folders))
    elif isinstance(store, Folder):
        _write_file(store, name, arrays)
    else:
        _write_streamed(store, name, arrays)


def _in_same_folder(here: Store, base: str, folders: AllowedFolders) -> str | None:
    if not base:
        return None
    there, name = store_of(base, folders)
    # A manifest names files without their folder, so it refers only to those beside it.
    return name if here.path("") == there.path("") else None


def _write_file(store: Folder, name: str, arrays: Mapping[str, Storable]) -> None:
    data, pending = name + _DATA, name + _PENDING
    _tidy(store, name)
    with store.creating(pending) as upload:
        header, digests = write_tensors(upload.file, arrays)
        size = upload.file.tell()
        # The old manifest may refer to an earlier pending file, which `commit` would replace.
        _finish_write(store, name)
        manifest = _manifest(data, name, arrays, header, digests, size)
        upload.commit()
        try:
            store.put(name + MANIFEST, manifest)
        except BaseException:
            # The failed call may have replaced the manifest all the same; the data file is then needed.
            if not _is_pending(store, name):
                store.remove(pending)
            raise
        # The checkpoint is complete already: a reader finds the data file under either name.
        store.rename(pending, data)


def _write_streamed(store: Store, name: str, arrays: Mapping[str, Storable]) -> None:
    """Write to a store, where files cannot be renamed: the file has a unique name, which the manifest contains."""
    replaced = files_if_any(store, name)
    file = f"{name}.{secrets.token_hex(6)}{_DATA}"
    with store.creating(file) as upload:
        header, digests = write_tensors(upload.file, arrays, streamed=True)
        size = upload.file.tell()
        upload.commit()
        with forgotten_if_it_fails(store, name, file):
            store.put(name + MANIFEST, _manifest(file, name, arrays, header, digests, size))
    forget_files(store, replaced)


def remove_unfinished(prefix: str, meta_graph_suffix: str = "meta") -> None:
    """Delete the files of incomplete checkpoints of this run, in any format, that killed writers have left.

    Args:
        prefix: Prefix of a checkpoint of the run.
        meta_graph_suffix: Suffix of the graph's file beside a checkpoint.

    Raises:
        PermissionDeniedError, …: the file system refuses.
    """
    store, name = store_of(prefix)
    if isinstance(store, Folder):
        _tidy(store, name)
    tidy_blocks(store, name)
    store.remove_unfinished(rf"{family_of(name)}(?:{SUFFIXES}|\.{re.escape(meta_graph_suffix)})")


def _tidy(store: Folder, name: str) -> None:
    """Delete temporary files of killed writers, and finish or delete data files that they did not rename."""
    family = family_of(name)
    store.remove_unfinished(rf"{family}(?:{re.escape(_DATA)}|{re.escape(_PENDING)}|{re.escape(MANIFEST)})")
    waiting = re.compile(family + re.escape(_PENDING))
    # Best effort: each save finishes or deletes the files of its own prefix in any case.
    with suppress(OSError, OpError):
        for file in filter(waiting.fullmatch, store.names()):
            if store.has_writer(file) is False:
                _finish_write(store, file.removesuffix(_PENDING))


def _manifest(
    file: str, name: str, arrays: Mapping[str, Storable], header: bytes, digests: Mapping[str, str], size: int
) -> bytes:
    content = {
        "version": 1,
        "file": file,
        "size": size,
        "header_sha256": hashlib.sha256(header).hexdigest(),
        "step": step_of(name),
        "tensors": {key: described(array) | {"sha256": digests[key]} for key, array in arrays.items()},
    }
    return sealed(content)


def _finish_write(store: Folder, name: str) -> None:
    """Finish an interrupted write: rename the pending data file if the manifest refers to it, else delete it."""
    pending = name + _PENDING
    # A living writer renames its file itself.
    if store.size(pending) is None or store.has_writer(pending):
        return
    if _is_pending(store, name):
        store.rename(pending, name + _DATA)
    else:
        store.remove(pending)


def _is_pending(store: Store, name: str) -> bool:
    """Return True if the manifest refers to the pending data file."""
    try:
        return _matches(TensorFile(StoredFile(store, name + _PENDING)), read_manifest(store, name))
    except (NotFoundError, DataLossError):
        return False


def _matches(file: TensorFile, manifest: CheckpointManifest) -> bool:
    # Unless it was streamed, a header contains the digests of the tensors, and so identifies the contents.
    digest: str = manifest["header_sha256"]
    return file.size == manifest["size"] and hashlib.sha256(file.header).hexdigest() == digest


class CheckpointReader:
    """A reader of a checkpoint by its prefix, or of any plain `.safetensors` file by its full name.

    A checkpoint may be TensorFlow's. In an object-based one, a variable's own name also stands for the path to it.

    Args:
        prefix: The prefix or the full name.
        folders: The folders that its files may be in.

    Attributes:
        prefix: As the argument.
        step: The step of the checkpoint, or None.

    Raises:
        PermissionDeniedError: the checkpoint is outside the folders.
        NotFoundError: there is no such checkpoint.
        DataLossError: a file is truncated or altered; the error names it.
    """

    def __init__(self, prefix: str, folders: AllowedFolders = ANYWHERE) -> None:
        self.prefix = prefix
        self.step: int | None = None
        self._file: TensorFile | BlockFiles | TensorBundle | SliceTables
        self._aliases: Mapping[str, str] = {}
        with file_errors(Path(prefix)):
            store, name = store_of(prefix, folders)
            # The prefix of a checkpoint may end so, too; then there is a manifest.
            if prefix.endswith(_DATA) and store.size(name + MANIFEST) is None:
                self._file = TensorFile(StoredFile(store, name))
                return
            _refuse_part(store, name)
            if (theirs := _tensorflows(store, name)) is not None:
                self._file, self.step = theirs, step_of(plain_prefix(name))
                self._aliases = theirs.aliases() if isinstance(theirs, TensorBundle) else {}
                return
            manifest = read_manifest(store, name)
            if manifest["version"] == 2:
                self._file = BlockFiles(store, name, manifest)
            else:
                self._file = data_file(prefix, manifest, folders)
        self.step = manifest["step"]

    def names(self) -> list[str]:
        """Return the names of the tensors, sorted."""
        return sorted(self._file.tensors)

    def __contains__(self, name: str) -> bool:
        return self._aliases.get(name, name) in self._file.tensors

    def dtype(self, name: str) -> DType:
        """Return the dtype of a tensor. Raise NotFoundError if there is no such tensor."""
        dtype: DType = self._entry(name).dtype
        return dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor. Raise NotFoundError if there is no such tensor."""
        shape: tuple[int, ...] = self._entry(name).shape
        return shape

    def _entry(self, name: str) -> Any:
        if name not in self:
            raise NotFoundError(
                f"tensor {name!r} is not in checkpoint {self.prefix}", expected=f"one of {self.names()}", actual=name
            )
        return self._file.tensors[self._aliases.get(name, name)]

    def read(self, name: str) -> Array:
        """Return the value of a tensor, checked against the manifest.

        Raises:
            NotFoundError: no tensor has that name, or a file is missing.
            DataLossError: the bytes are not those that were written.
            AbortedError: the checkpoint was replaced meanwhile; open it again.
        """
        self._entry(name)
        with file_errors(str(self._file.path)):
            return self._file.read(self._aliases.get(name, name))

    # -- TensorFlow's names -----------------------------------------------------------------------------------------

    def get_tensor(self, tensor_str: str) -> Any:
        """Return the value as `read` does; for a scalar, a NumPy scalar or bytes."""
        return self.read(tensor_str)[()]

    def has_tensor(self, tensor_str: str) -> bool:
        """Return True if a tensor has that name."""
        return tensor_str in self

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Return the shapes of the tensors, by name."""
        return {name: list(self.shape(name)) for name in self.names()}

    def get_variable_to_dtype_map(self) -> dict[str, DType]:
        """Return the dtypes of the tensors, by name."""
        return {name: self.dtype(name) for name in self.names()}


def _refuse_part(store: Store, name: str) -> None:
    """Raise NotFoundError if the name is that of one file of a checkpoint.

    An index file of TensorFlow has the form of a whole checkpoint of its first version, which would be read as empty.
    """
    for suffix in (INDEX, MANIFEST):
        prefix = name.removesuffix(suffix)
        if prefix not in ("", name) and store.size(name) is not None and store.size(name + MANIFEST) is None:
            raise NotFoundError(
                f"{store.path(name)} is a file of a checkpoint, which is named by its prefix",
                expected=store.path(prefix),
                actual=store.path(name),
            )


def _tensorflows(store: Store, name: str) -> TensorBundle | SliceTables | None:
    """Return TensorFlow's checkpoint of that name, if there is no aioflow checkpoint."""
    if store.size(name + MANIFEST) is not None:
        return None
    if store.size(name + INDEX) is not None:
        return TensorBundle(store, name)
    tables = table_files(store, name)
    return SliceTables(store, name, tables) if tables else None


def data_file(prefix: str, manifest: CheckpointManifest, folders: AllowedFolders = ANYWHERE) -> TensorFile:
    """Return the data file that the manifest of a checkpoint in one file describes.

    Args:
        prefix: Prefix of the checkpoint.
        manifest: Its manifest.
        folders: The folders that the file may be in.

    Raises:
        NotFoundError: the file is missing.
        DataLossError: the file is another one.
    """
    store, name = store_of(prefix, folders)
    if is_url(prefix) or _came_from_a_store(store, name, manifest):
        return _streamed_file(store, name, manifest)
    return _named_file(store, name, manifest)


def _came_from_a_store(store: Store, name: str, manifest: CheckpointManifest) -> bool:
    """Return True if the data file has a unique name as in a store."""
    file = manifest.get("file")
    own = isinstance(file, str) and re.fullmatch(rf"{re.escape(name)}\.[0-9a-f]{{12}}{re.escape(_DATA)}", file)
    return bool(own) and store.size(str(file)) is not None


def _named_file(store: Store, name: str, manifest: CheckpointManifest) -> TensorFile:
    failure: OpError | None = None
    for suffix in (_DATA, _PENDING, _DATA):  # a writer may be renaming the second to the first at this moment
        try:
            file = TensorFile(StoredFile(store, name + suffix))
        except (NotFoundError, DataLossError) as error:
            # A damaged file explains more than a missing one.
            failure = failure if failure is not None and isinstance(error, NotFoundError) else error
            continue
        if _matches(file, manifest):
            return file
        failure = _mismatch(file, manifest)
    raise failure or DataLossError(f"the data file of checkpoint {store.path(name)} is missing")


def _mismatch(file: TensorFile, manifest: CheckpointManifest) -> DataLossError:
    return DataLossError(
        f"file {file.path} does not match its manifest",
        expected=f"{manifest['size']} bytes with header {manifest['header_sha256'][:12]}…",
        actual=f"{file.size} bytes with header {hashlib.sha256(file.header).hexdigest()[:12]}…",
    )


def _streamed_file(store: Store, name: str, manifest: CheckpointManifest) -> TensorFile:
    path = store.path(name + MANIFEST)
    try:
        (file,) = files_of(manifest)
        digests = {key: str(entry["sha256"]) for key, entry in manifest["tensors"].items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataLossError(f"file {path} is damaged", expected="a manifest", actual=str(error)) from error
    found = TensorFile(StoredFile(store, file))
    if not _matches(found, manifest):
        raise _mismatch(found, manifest)
    # A streamed file has no digests of its own, so those of the manifest are used.
    found.digests = digests
    return found


def committing_file(checkpoint_prefix: str) -> str | None:
    """Return the file that commits a checkpoint, or a `.safetensors` file itself; None if neither exists."""
    store, name = store_of(checkpoint_prefix)
    for suffix in (MANIFEST, INDEX):
        if store.size(name + suffix) is not None:
            return checkpoint_prefix + suffix
    if name.endswith(_DATA) and store.size(name) is not None:
        return checkpoint_prefix
    tables = table_files(store, name)
    return store.path(tables[0]) if tables else None


def checkpoint_exists(checkpoint_prefix: str) -> bool:
    """Return True if there is a checkpoint (of aioflow or TensorFlow, or a `.safetensors` file) of that name."""
    return committing_file(checkpoint_prefix) is not None


def remove_checkpoint(
    checkpoint_prefix: str, checkpoint_format_version: int | None = None, meta_graph_suffix: str = "meta"
) -> None:
    """Delete a checkpoint if it exists.

    The file that commits it is deleted first, so that an incomplete checkpoint is never read. Files that another
    checkpoint of the folder refers to stay.

    Args:
        checkpoint_prefix: Prefix of the checkpoint.
        checkpoint_format_version: Part of the published signature: a checkpoint of any form is deleted.
        meta_graph_suffix: Suffix of the graph's file, `checkpoint_prefix.SUFFIX`, which is deleted too.
    """
    store, name = store_of(checkpoint_prefix)
    # Read first: without the manifest these names are unknown.
    files = files_if_any(store, name)
    store.remove(name + MANIFEST)
    if not is_url(checkpoint_prefix):
        for suffix in (_PENDING, _DATA):
            store.remove(name + suffix)
    forget_files(store, [file for file in files if file != name + _DATA])
    # The index comes first: without it, the other files are no checkpoint.
    for file in bundle_files(store, name) or table_files(store, name):
        store.remove(file)
    store.remove(f"{name}.{meta_graph_suffix}")
