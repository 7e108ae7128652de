"""Writer of TensorFlow's checkpoints of version 2, in one shard. The index is written last, as the commit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import BinaryIO, Final

import numpy as np

from aioflow.concurrency.stopping import batches, checkpoint
from aioflow.errors import OpError
from aioflow.formats.allowed_folders import ANYWHERE, AllowedFolders
from aioflow.formats.checksum import crc32c, disguised
from aioflow.formats.increments import files_if_any, forget_files
from aioflow.formats.manifests import MANIFEST, family_of
from aioflow.formats.protobuf import FIXED32, write_number, write_piece
from aioflow.formats.sstable import write_table
from aioflow.formats.stores import Store, is_url, store_of
from aioflow.formats.tensor_bundle import INDEX, shard_name
from aioflow.formats.tensor_encoding import Storable, encode
from aioflow.graph import dtypes
from aioflow.graph.dtypes import as_dtype

# BundleHeaderProto: num_shards = 1 and version.producer = 1; the default endianness is little.
_HEADER: Final = write_number(1 << 3) + write_number(1) + write_piece(3, write_number(1 << 3) + write_number(1))
_SHARD: Final = r"\.data-\d{5}-of-\d{5}"
SUFFIXES: Final = rf"(?:{re.escape(INDEX)}|{_SHARD})"  # a regular expression for the suffixes of the files


def write_bundle(prefix: str, tensors: Mapping[str, Storable], folders: AllowedFolders = ANYWHERE) -> None:
    """Write a checkpoint in TensorFlow's format, replacing one of the same prefix. Creates missing directories.

    A crash leaves the old checkpoint or none of that prefix, since two files cannot be replaced atomically. A failure,
    for example a full disk, leaves the old checkpoint in a local folder, or none of that prefix in a store.

    Args:
        prefix: A path, or a URL for `fsspec`.
        tensors: Arrays, or values that are read row by row (`ArrayReader`).
        folders: The folders that the checkpoint may be in.

    Raises:
        PermissionDeniedError, ResourceExhaustedError, …: the file system refuses; the error names the file.
        InvalidArgumentError: a tensor has a dtype that cannot be stored.
    """
    store, name = store_of(prefix, folders)
    store.remove_unfinished(f"{family_of(name)}{SUFFIXES}")
    file = shard_name(name, 0, 1)
    entries = [(b"", _HEADER)]
    committing = is_url(prefix)  # opening an object of a store may already replace the old one
    try:
        with store.creating(file) as upload:
            offset = 0
            # A table is in the order of the encoded names, which differs from that of Python's str.
            for key, value in sorted(tensors.items(), key=lambda item: item[0].encode()):
                size, crc = _write(upload.file, key, value)
                entries.append((key.encode(), _entry(value, offset, size, crc)))
                offset += size
            # Both files are on the disk before the old checkpoint is touched, so a full disk does not cost it.
            with store.staging(name + INDEX, write_table(entries)) as index:
                upload.flush()
                committing = True
                store.remove(name + INDEX)  # so that the old index never refers to new data
                upload.commit()
                index.commit()
    except BaseException:
        if committing:
            _remove_half(store, name)
        raise
    for other in bundle_files(store, name):
        if other not in (file, name + INDEX):
            store.remove(other)
    # A checkpoint in aioflow's own format under the same prefix is replaced too. Its files may only be deleted once its
    # manifest no longer refers to them, so their names are read first.
    ours = files_if_any(store, name)
    store.remove(name + MANIFEST)
    forget_files(store, ours)


def _remove_half(store: Store, name: str) -> None:
    """Remove a checkpoint whose writing has failed. Errors are ignored: the original error is being raised."""
    with suppress(OpError):
        for file in bundle_files(store, name):
            store.remove(file)


def bundle_files(store: Store, name: str) -> list[str]:
    """Return the names of the files of a checkpoint, the index first."""
    shard = re.compile(re.escape(name) + _SHARD)
    index = [name + INDEX] if store.size(name + INDEX) is not None else []
    return index + [file for file in store.names() if shard.fullmatch(file)]


def _write(file: BinaryIO, name: str, value: Storable) -> tuple[int, int]:
    """Write a value. Return its size in bytes and its checksum."""
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
    """Return the lengths, their checksum and the strings, with the checksum of the whole.

    The whole's checksum covers the lengths as fixed-width integers, although they are written as varints.
    """
    fixed = b"".join(len(item).to_bytes(4 if len(item) < 1 << 32 else 8, "little") for item in items)
    own = disguised(crc := crc32c(fixed)).to_bytes(4, "little")
    whole = crc32c(own, crc)
    for item in batches(items):
        whole = crc32c(item, whole)
    return iter([b"".join(write_number(len(item)) for item in items), own, *items]), whole


def _entry(value: Storable, offset: int, size: int, crc: int) -> bytes:
    """Encode a BundleEntryProto."""
    sizes = b"".join(write_piece(2, write_number(1 << 3) + write_number(length)) for length in value.shape)
    fields = [(1, as_dtype(value.dtype).as_datatype_enum), (4, offset), (5, size)]
    numbers = b"".join(write_number(field << 3) + write_number(number) for field, number in fields if number)
    return numbers + write_piece(2, sizes) + write_number(6 << 3 | FIXED32) + disguised(crc).to_bytes(4, "little")
