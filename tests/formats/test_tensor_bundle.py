"""TensorFlow checkpoints, written and read here. Damaged or forged ones are rejected with a typed error.

Exchange with TensorFlow itself is in tests/parity and tests/interop/tensorflow.
"""

from __future__ import annotations

import contextlib
import random
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.errors import DataLossError, NotFoundError, OpError, PermissionDeniedError, UnimplementedError
from aioflow.formats.allowed_folders import AllowedFolders
from aioflow.formats.checkpoint import CheckpointReader, write_checkpoint
from aioflow.formats.ordered_code import Extent, slice_key
from aioflow.formats.protobuf import write_number, write_piece
from aioflow.formats.sstable import Table, write_table
from aioflow.formats.tensor_bundle import TensorBundle
from aioflow.formats.tensor_bundle_writer import write_bundle
from tests.support.random_examples import examples

VALUES: dict[str, Any] = {
    "a": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.array([b"one", b"", b"three"], object),
    "c": np.array(True),
    "d": np.zeros((0, 2), np.int64),
    "e": np.array([1 + 2j]),
}


def _read_all(prefix: Path) -> dict[str, Any]:
    reader = CheckpointReader(str(prefix))
    return {name: reader.read(name) for name in reader.names()}


def _rewritten(prefix: Path, changes: dict[bytes, bytes | None]) -> None:
    """Rewrite the index with changed entries; None removes an entry."""
    file = Path(f"{prefix}.index")
    entries = {**dict(Table.of(file.read_bytes()).items()), **changes}
    file.write_bytes(write_table(sorted((key, value) for key, value in entries.items() if value is not None)))


def _entry(dtype: int = 1, shape: tuple[int, ...] = (3, 4), **numbers: int) -> bytes:
    fields = {"shard": 3, "offset": 4, "size": 5}
    sizes = b"".join(write_piece(2, write_number(8) + write_number(size % 2**64)) for size in shape)
    made = write_number(8) + write_number(dtype) + write_piece(2, sizes)
    return made + b"".join(write_number(fields[k] << 3) + write_number(v % 2**64) for k, v in numbers.items())


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    write_bundle(str(tmp_path / "m"), VALUES)
    return tmp_path / "m"


def test_written_tensors_are_read(prefix: Path) -> None:
    found = _read_all(prefix)
    assert list(found) == sorted(VALUES)
    for name, value in VALUES.items():
        assert found[name].dtype == value.dtype
        assert found[name].flags.writeable
        np.testing.assert_array_equal(found[name], value)


def test_a_bundle_replaces_an_aioflow_checkpoint(tmp_path: Path) -> None:
    prefix = str(tmp_path / "m")
    write_checkpoint(prefix, {"old": np.zeros(3)})
    write_checkpoint(prefix, {"old": np.zeros(3)}, base="")
    write_bundle(prefix, VALUES)
    assert CheckpointReader(prefix).names() == sorted(VALUES)
    assert not list(tmp_path.glob("*.blocks"))
    write_checkpoint(prefix, {"new": np.zeros(3)})
    assert CheckpointReader(prefix).names() == ["new"]


def test_a_file_outside_the_allowed_folders_is_not_opened(prefix: Path, tmp_path: Path) -> None:
    with pytest.raises(PermissionDeniedError):
        CheckpointReader(str(prefix), AllowedFolders([tmp_path / "other"]))
    with pytest.raises(PermissionDeniedError):
        write_bundle(str(prefix), VALUES, AllowedFolders([tmp_path / "other"]))
    inside = tmp_path / "inside"
    inside.mkdir()
    for end in (".index", ".data-00000-of-00001"):
        (inside / f"m{end}").symlink_to(f"{prefix}{end}")
    with pytest.raises(PermissionDeniedError):
        CheckpointReader(str(inside / "m"), AllowedFolders([inside])).read("a")


@pytest.mark.parametrize("end", ["index", "data-00000-of-00001"])
def test_every_changed_byte_of_the_files_is_detected(prefix: Path, end: str) -> None:
    file = Path(f"{prefix}.{end}")
    data = file.read_bytes()
    unused = range(len(data) - 48, len(data) - 8) if end == "index" else range(0)
    for at in range(len(data)):
        file.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        if at not in unused:
            with pytest.raises(OpError):
                _read_all(prefix)
    for size in range(len(data)):
        file.write_bytes(data[:size])
        with pytest.raises(OpError):
            _read_all(prefix)
    file.unlink()
    with pytest.raises(NotFoundError, match="m"):
        _read_all(prefix)


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        (_entry(size=48, offset=1 << 40), DataLossError),  # beyond the file
        (_entry(size=48, offset=-1), DataLossError),
        (_entry(size=-48), DataLossError),
        (_entry(size=47), DataLossError),
        (_entry(shape=(1 << 40, 1 << 20), size=1 << 62), DataLossError),
        (_entry(shape=(1 << 31, 1 << 31), size=0), DataLossError),
        (_entry(shape=(1 << 33,), size=1 << 35), DataLossError),
        (_entry(7, shape=(1 << 40,), size=48), DataLossError),  # 2**40 strings in 48 bytes
        (_entry(7, shape=(1,), size=10), DataLossError),
        (_entry(size=48, shard=1), DataLossError),
        (_entry(size=48, shard=-1), DataLossError),
        (_entry(20, size=48), UnimplementedError),  # a resource
        (_entry(21, size=48), UnimplementedError),
        (_entry(77, size=48), UnimplementedError),
    ],
)
def test_a_false_entry_is_rejected_on_read(prefix: Path, entry: bytes, error: type[OpError]) -> None:
    _rewritten(prefix, {b"a": entry})
    reader = CheckpointReader(str(prefix))
    with pytest.raises(error, match="'a'"):
        reader.read("a")
    np.testing.assert_array_equal(reader.read("b"), VALUES["b"])


@pytest.mark.parametrize(
    "changes",
    [
        {b"": None},
        {b"": b"\x08\x00"},
        {b"": b"\x08\x80\x80\x80\x80\x40"},  # too many shards
        {b"": b"\x08\x01\x10\x07"},
        {b"a": b"\xff"},
        {b"a": _entry(shape=(-1, 4), size=48)},
        {b"\xff\xfe": _entry()},  # a name that is not UTF-8
    ],
)
def test_an_invalid_index_is_rejected_on_open(prefix: Path, changes: dict[bytes, bytes | None]) -> None:
    _rewritten(prefix, changes)
    with pytest.raises(DataLossError, match=r"m\.index"):
        CheckpointReader(str(prefix))


def _slice(*extents: tuple[int, int]) -> bytes:
    made = b"".join(
        write_piece(1, b"\x08" + write_number(start % 2**64) + b"\x10" + write_number(length % 2**64))
        for start, length in extents
    )
    return write_piece(7, made)


@pytest.mark.parametrize(
    "slices",
    [
        _slice((0, 2), (0, 4)),  # incomplete
        _slice((0, 2), (0, 4)) + _slice((1, 2), (0, 4)),  # overlapping
        _slice((0, 9), (0, 4)),
        _slice((-1, 4), (0, 4)),
        _slice((0, 3)),
        _slice((0, 3), (0, 4)),  # the entry of this slice is missing
    ],
)
def test_slices_that_do_not_make_up_a_tensor_are_rejected(prefix: Path, slices: bytes) -> None:
    _rewritten(prefix, {b"a": _entry() + slices})
    with pytest.raises(DataLossError, match="'a'"):
        CheckpointReader(str(prefix)).read("a")


def test_slice_keys_sort_like_names_and_extents() -> None:
    numbers = [-(2**63), -(2**40), -8193, -8192, -65, -64, -1, 0, 63, 64, 8191, 8192, 2**40, 2**63 - 1]
    keys = [slice_key("a", (Extent(number, 1),)) for number in numbers]
    assert keys == sorted(keys)
    names = ["", "a", "a\0", "a\0b", "aa", "b"]
    assert [slice_key(name, ()) for name in names] == sorted(slice_key(name, ()) for name in names)


async def test_other_versions_are_not_written() -> None:
    af.Variable(1.0)
    with pytest.raises(UnimplementedError):
        af.train.Saver(write_version=1)
    with pytest.raises(af.errors.InvalidArgumentError):
        af.train.Saver(write_version=2, incremental=True)


async def test_a_bundle_is_saved_to_a_store_and_a_snapshot_is_written_as_one() -> None:
    pytest.importorskip("fsspec")
    with af.Graph().as_default():
        v = af.get_variable("v", initializer=af.constant([1.0, 2.0]))
        async with af.Session() as session:
            await session.run(v.initializer)
            saver = af.train.Saver(write_version=2)
            taken = await saver.snapshot(session, "memory://bundles/m", 7)
            assert taken is not None
            await session.run(v.assign([3.0, 4.0]))
            prefix = await taken.write()
            assert af.train.latest_checkpoint("memory://bundles") == prefix == "memory://bundles/m-7"
            await saver.restore(session, prefix)
            np.testing.assert_array_equal(await session.run(v), [1, 2])


def _mutated(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    made = bytearray(data)
    for at, value in changes:
        made[at % len(made)] = value
    return bytes(made)


CHANGES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=8)


class _Memory:
    """A read-only store in a dictionary."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def path(self, name: str) -> str:
        return name

    def size(self, name: str) -> int | None:
        return len(self.files[name]) if name in self.files else None

    def read(self, name: str) -> bytes:
        return self.files[name]

    def open(self, name: str) -> BytesIO:
        return BytesIO(self.files[name])


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> _Memory:
    prefix = tmp_path_factory.mktemp("bundle") / "m"
    write_bundle(str(prefix), VALUES)
    return _Memory({path.name: path.read_bytes() for path in prefix.parent.iterdir()})


def _entries_or_refused(stored: _Memory, changes: list[tuple[int, int]]) -> None:
    """Change bytes of the entries under valid checksums, as a forger would, and read all tensors."""
    entries = list(Table.of(stored.files["m.index"]).items())
    joined = _mutated(b"".join(value for _, value in entries), changes)
    at, changed = 0, []
    for key, value in entries:
        changed.append((key, joined[at : at + len(value)]))
        at += len(value)
    store: Any = _Memory({**stored.files, "m.index": write_table(changed)})
    with contextlib.suppress(OpError):
        bundle = TensorBundle(store, "m")
        for name in bundle.tensors:
            with contextlib.suppress(OpError):
                bundle.read(name)


@settings(max_examples=examples(300), deadline=None)
@given(changes=CHANGES)
def test_random_index_entries_are_read_or_rejected(stored: _Memory, changes: list[tuple[int, int]]) -> None:
    _entries_or_refused(stored, changes)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(10))
def test_random_index_entries_are_read_or_rejected_100_000(stored: _Memory, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10_000):
        changes = [(rng.randrange(1 << 16), rng.randrange(256)) for _ in range(rng.randint(1, 8))]
        try:
            _entries_or_refused(stored, changes)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {changes}") from error
