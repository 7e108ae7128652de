"""Writes TensorFlow's checkpoints of version 2, in one shard. The index, which comes last, commits them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, Final

import numpy as np

from aioflow.errors import OpError
from aioflow.formats.allowed_folders import ANYWHERE, AllowedFolders
from aioflow.formats.checksum import crc32c, disguised
from aioflow.formats.increments import files_if_any, forget_files
from aioflow.formats.manifests import MANIFEST, family_of
from aioflow.formats.protobuf import FIXED32, write_number, write_piece
from aioflow.formats.sstable import write_table
from aioflow.formats.stores import Store, is_url, store_of
from aioflow.formats.tensor_bundle import INDEX, shard_name
from aioflow.formats.tensor_encoding import encode
from aioflow.graph import dtypes
from aioflow.graph.dtypes import as_dtype
from aioflow.work.stopping import batches, checkpoint

__all__ = ["SUFFIXES", "bundle_files", "write_bundle"]

_HEADER: Final = write_number(1 << 3) + write_number(1) + write_piece(3, write_number(1 << 3) + write_number(1))
_SHARD: Final = r"\.data-\d{5}-of-\d{5}"
SUFFIXES: Final = rf"(?:{re.escape(INDEX)}|{_SHARD})"  # a regular expression for what files' names end with


def write_bundle(prefix: str, tensors: Mapping[str, Any], folders: AllowedFolders = ANYWHERE) -> None:
    """Write a checkpoint that TensorFlow reads, replacing one of the same prefix. Missing directories are made.

    A crash leaves the old checkpoint, or none of that prefix: two files cannot be replaced at once. A failure, as where
    the disk is full, leaves the old checkpoint in a folder of this machine, or none of that prefix in a store.

    Args:
        prefix: A path, or a URL for `fsspec`.
        tensors: Arrays, or what is read row by row (`Rows`).
        folders: Where it may be.

    Raises:
        PermissionDeniedError, ResourceExhaustedError, …: the file system refuses; the error names the file.
        InvalidArgumentError: a tensor has a dtype that cannot be stored.
    """
    store, name = store_of(prefix, folders)
    store.remove_unfinished(f"{family_of(name)}{SUFFIXES}")
    file = shard_name(name, 0, 1)
    entries = [(b"", _HEADER)]
    committing = is_url(prefix)  # where what is opened may have replaced the file of before
    try:
        with store.creating(file) as upload:
            offset = 0
            for key, value in sorted(tensors.items(), key=lambda item: item[0].encode()):
                size, crc = _write(upload.file, key, value)
                entries.append((key.encode(), _entry(value, offset, size, crc)))
                offset += size
            with store.staging(name + INDEX, write_table(entries)) as index:
                upload.flush()
                committing = True
                store.remove(name + INDEX)  # so that it never speaks of bytes that are not there
                upload.commit()
                index.commit()
    except BaseException:
        if committing:
            _remove_half(store, name)
        raise
    for other in bundle_files(store, name):
        if other not in (file, name + INDEX):
            store.remove(other)
    ours = files_if_any(store, name)
    store.remove(name + MANIFEST)
    forget_files(store, ours)


def _remove_half(store: Store, name: str) -> None:
    """Remove a checkpoint whose writing has failed. That this fails as well is no error beside the one on its way."""
    with suppress(OpError):
        for file in bundle_files(store, name):
            store.remove(file)


def bundle_files(store: Store, name: str) -> list[str]:
    """Names of the files of a checkpoint, the index first."""
    shard = re.compile(re.escape(name) + _SHARD)
    index = [name + INDEX] if store.size(name + INDEX) is not None else []
    return index + [file for file in store.names() if shard.fullmatch(file)]


def _write(file: BinaryIO, name: str, value: Any) -> tuple[int, int]:
    """How many bytes a value takes, and their checksum."""
    size = crc = 0
    if as_dtype(value.dtype) is dtypes.string:
        pieces, crc = _string_pieces([bytes(item) for item in np.asarray(value).reshape(-1)])
        for piece in pieces:
            file.write(piece)
            size += len(piece)
        return size, crc
    for part in encode(name, value).pieces():
        checkpoint()
        file.write(part.data)
        crc = crc32c(part, crc)
        size += part.nbytes
    return size, crc


def _string_pieces(items: list[bytes]) -> tuple[Iterator[bytes], int]:
    """The lengths, their checksum and the strings; the checksum of all that, the lengths as fixed numbers in it."""
    fixed = b"".join(len(item).to_bytes(4 if len(item) < 1 << 32 else 8, "little") for item in items)
    own = disguised(crc := crc32c(fixed)).to_bytes(4, "little")
    whole = crc32c(own, crc)
    for item in batches(items):
        whole = crc32c(item, whole)
    return iter([b"".join(write_number(len(item)) for item in items), own, *items]), whole


def _entry(value: Any, offset: int, size: int, crc: int) -> bytes:
    """A BundleEntryProto."""
    sizes = b"".join(write_piece(2, write_number(1 << 3) + write_number(length)) for length in value.shape)
    fields = [(1, as_dtype(value.dtype).as_datatype_enum), (4, offset), (5, size)]
    numbers = b"".join(write_number(field << 3) + write_number(number) for field, number in fields if number)
    return numbers + write_piece(2, sizes) + write_number(6 << 3 | FIXED32) + disguised(crc).to_bytes(4, "little")
