"""Big-endian checkpoints in several shards: aioflow and TensorFlow read the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioflow.formats.checkpoint import CheckpointReader
from aioflow.formats.checksum import crc32c, disguised
from aioflow.formats.protobuf import FIXED32, write_number, write_piece
from aioflow.formats.sstable import write_table
from aioflow.graph.dtypes import as_dtype, string

VALUES: dict[str, Any] = {
    "bool": np.array([True, False]),
    "complex": np.array([[1 + 2j, -3j]], np.complex64),
    "double": np.array(1e300),
    "empty": np.zeros((0, 3), np.int64),
    "half": np.arange(3, dtype=np.float16),
    "int": np.arange(-3, 3, dtype=np.int16).reshape(2, 3),
    "words": np.array([[b"one", b""], [b"\0three", b"x" * 300]], object),
}


def stored(value: Any) -> tuple[bytes, int]:
    """Return the bytes of a tensor, most significant first, and their checksum in the bundle's form."""
    if value.dtype != object:
        data = value.astype(value.dtype.newbyteorder(">")).tobytes()
        return data, crc32c(data)
    items = value.reshape(-1).tolist()
    crc = crc32c(b"".join(len(item).to_bytes(4, "big") for item in items))
    own = disguised(crc).to_bytes(4, "big")
    return b"".join(write_number(len(item)) for item in items) + own + b"".join(items), crc32c(
        own + b"".join(items), crc
    )


def write(prefix: Path, shards: int) -> None:
    contents = [bytearray() for _ in range(shards)]
    entries = [(b"", b"\x08" + write_number(shards) + b"\x10\x01" + b"\x1a\x02\x08\x01")]
    for i, (name, value) in enumerate(sorted(VALUES.items())):
        shard, (data, crc) = i % shards, stored(value)
        dtype = string if value.dtype == object else as_dtype(value.dtype)
        sizes = b"".join(write_piece(2, b"\x08" + write_number(size)) for size in value.shape)
        numbers = {1: dtype.as_datatype_enum, 3: shard, 4: len(contents[shard]), 5: len(data)}
        entry = b"".join(write_number(field << 3) + write_number(n) for field, n in numbers.items() if n)
        entry += write_piece(2, sizes) + write_number(6 << 3 | FIXED32) + disguised(crc).to_bytes(4, "little")
        contents[shard] += data
        entries.append((name.encode(), entry))
    Path(f"{prefix}.index").write_bytes(write_table(entries))
    for shard, written in enumerate(contents):
        Path(f"{prefix}.data-{shard:05d}-of-{shards:05d}").write_bytes(bytes(written))


@pytest.mark.parametrize("shards", [1, 3])
def test_both_read_numbers_and_strings_of_big_endian_bundles(tmp_path: Path, shards: int) -> None:
    tf = pytest.importorskip("tensorflow")
    write(tmp_path / "m", shards)
    theirs, ours = tf.train.load_checkpoint(str(tmp_path / "m")), CheckpointReader(str(tmp_path / "m"))
    assert ours.names() == sorted(VALUES)
    for name, value in VALUES.items():
        found = ours.read(name)
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found, value)
        np.testing.assert_array_equal(theirs.get_tensor(name), value)
