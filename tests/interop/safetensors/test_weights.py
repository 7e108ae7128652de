"""Reading checkpoints: files written by the safetensors library, single and sharded, and malformed files."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors as library
import safetensors.numpy as library_numpy

from aioflow.errors import (
    AbortedError,
    DataLossError,
    DTypeError,
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
)
from aioflow.interop import safetensors

KINDS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
KINDS += ["float16", "float32", "float64", "complex64"]


def written(path: Path, header: Any, data: bytes = b"") -> Path:
    """Write a file with this header, as JSON unless it is bytes already, and return its path."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def entry(begin: int = 0, end: int = 4, shape: Any = (1,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("kind", KINDS)
def test_open_reads_files_of_the_safetensors_library(kind: str, tmp_path: Path) -> None:
    array = (np.arange(6).reshape(2, 3) % 2).astype(kind)
    library_numpy.save_file(
        {"a.b": array, "empty": array[:0], "scalar": np.array(array[0, 1])}, tmp_path / "m.safetensors"
    )
    weights = safetensors.open(tmp_path / "m.safetensors")
    assert weights.names() == ["a.b", "empty", "scalar"]
    np.testing.assert_array_equal(weights["a.b"], array, strict=True)
    np.testing.assert_array_equal(weights.read("a.b"), array, strict=True)
    assert weights["empty"].shape == (0, 3)
    assert weights["scalar"] == array[0, 1]
    assert (weights.entry("a.b").dtype.np_dtype, weights.entry("a.b").shape) == (array.dtype, (2, 3))


def test_bfloat16_is_read(tmp_path: Path) -> None:
    data = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    file = written(tmp_path / "m.safetensors", {"a": entry(shape=[2], dtype="BF16")}, data.tobytes())
    np.testing.assert_array_equal(safetensors.open(file)["a"], data, strict=True)


def test_arrays_are_read_only_views_of_the_file(tmp_path: Path) -> None:
    library_numpy.save_file({"a": np.arange(4.0)}, tmp_path / "m.safetensors")
    weights = safetensors.open(tmp_path / "m.safetensors")
    first, second = weights["a"], weights["a"]
    assert np.shares_memory(first, second)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1.0
    with pytest.raises(ValueError, match="WRITEABLE"):
        first.flags.writeable = True
    mine = weights.read("a")
    mine[0] = 7.0
    assert first[0] == 0.0


def test_arrays_outlive_the_weights_object(tmp_path: Path) -> None:
    library_numpy.save_file({"a": np.arange(4.0)}, tmp_path / "m.safetensors")
    kept = safetensors.open(tmp_path / "m.safetensors")["a"][1:]
    np.testing.assert_array_equal(kept, [1.0, 2.0, 3.0])


async def test_saved_file_is_read_by_the_safetensors_library(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    tensors = {"h.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3).T, "ids": np.array([1, 2])}
    await safetensors.save(file, tensors, {"format": "np"})
    loaded = library_numpy.load_file(file)
    for name, array in tensors.items():
        np.testing.assert_array_equal(loaded[name], array, strict=True)
    with library.safe_open(file, "np") as opened:
        assert opened.metadata()["format"] == "np"
    assert safetensors.open(file).metadata == {"format": "np"}
    assert os.listdir(tmp_path) == ["m.safetensors"]


async def test_open_weights_keep_the_old_file_after_save(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    await safetensors.save(file, {"a": np.zeros(3), "b": np.zeros(1)})
    opened, unread = safetensors.open(file), safetensors.open(file)
    before = opened["a"]
    await safetensors.save(file, {**opened, "a": np.ones(3)})
    np.testing.assert_array_equal(before, np.zeros(3))
    np.testing.assert_array_equal(safetensors.open(file)["a"], np.ones(3))
    with pytest.raises(AbortedError, match="replaced"):
        unread["a"]


async def test_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    await safetensors.save(file, {"a": np.zeros(3)})
    before = file.read_bytes()
    with pytest.raises(DTypeError):
        await safetensors.save(file, {"a": np.array(["text"])})
    with pytest.raises(InvalidArgumentError):
        await safetensors.save(file, {"__metadata__": np.zeros(3)})
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.safetensors"]


def _sharded(folder: Path, **changes: str) -> Path:
    library_numpy.save_file({"a": np.zeros(2)}, folder / "model-00001-of-00002.safetensors")
    library_numpy.save_file({"b": np.ones(2)}, folder / "model-00002-of-00002.safetensors")
    homes = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors", **changes}
    index = {"metadata": {"total_size": 32}, "weight_map": homes}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("end", ["", "model.safetensors.index.json"])
def test_open_accepts_folder_with_an_index(end: str, tmp_path: Path) -> None:
    weights = safetensors.open(_sharded(tmp_path) / end)
    assert weights.names() == ["a", "b"]
    np.testing.assert_array_equal(weights["b"], np.ones(2))
    assert sorted(weights.files) == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def test_open_accepts_folder_with_one_file(tmp_path: Path) -> None:
    library_numpy.save_file({"a": np.zeros(2)}, tmp_path / "model.safetensors")
    assert list(safetensors.open(str(tmp_path))) == ["a"]


def test_missing_file_folder_or_tensor_raises_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"model\.safetensors"):
        safetensors.open(tmp_path)
    with pytest.raises(NotFoundError, match="nowhere"):
        safetensors.open(tmp_path / "nowhere")
    weights = safetensors.open(_sharded(tmp_path))
    with pytest.raises(NotFoundError, match="'c'"):
        weights["c"]


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "/etc/passwd", "a/b", "..", ".", "", "C:\\x", "..\\x", "x\0y", "C:x", 3, None, ["a"]],
)
def test_index_may_name_only_files_in_its_folder(name: Any, tmp_path: Path) -> None:
    with pytest.raises(DataLossError, match=r"index\.json"):
        safetensors.open(_sharded(tmp_path, b=name))


def test_index_naming_missing_tensor_or_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataLossError, match="c in model-00001"):
        safetensors.open(_sharded(tmp_path, c="model-00001-of-00002.safetensors"))
    with pytest.raises(NotFoundError, match=r"other\.safetensors"):
        safetensors.open(_sharded(tmp_path, b="other.safetensors"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', "[" * 100_000, '{"weight_map": [1]}', "\xff"])
def test_malformed_index_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataLossError, match="index"):
        safetensors.open(tmp_path)


HOSTILE: dict[str, tuple[Any, bytes]] = {
    "overlapping": ({"a": entry(0, 4), "b": entry(0, 4)}, b"12345678"),
    "a gap": ({"a": entry(0, 4), "b": entry(8, 12)}, b"123456789012"),
    "backwards": ({"a": entry(4, 0)}, b"1234"),
    "beyond the end": ({"a": entry(0, 2**40, [2**38])}, b"1234"),
    "more than the header says": ({"a": entry()}, b"12345678"),
    "less than the header says": ({"a": entry()}, b"123"),
    "a shape larger than any": ({"a": entry(0, 0, [0, 2**62])}, b""),
    "a shape of many sizes": ({"a": entry(0, 0, [0] * 65)}, b""),
    "a product that goes on": ({"a": entry(0, 0, [2**62] * 100_000)}, b""),
    "a negative size": ({"a": entry(0, 4, [-1, -1])}, b"1234"),
    "a size that is no number": ({"a": entry(0, 4, ["1"])}, b"1234"),
    "a size that is true": ({"a": entry(0, 4, [True])}, b"1234"),
    "offsets that are floats": ({"a": {**entry(), "data_offsets": [0.0, 4.0]}}, b"1234"),
    "three offsets": ({"a": {**entry(), "data_offsets": [0, 4, 4]}}, b"1234"),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, b"1234"),
    "no such dtype": ({"a": entry(dtype="F31")}, b"1234"),
    "a dtype that is a list": ({"a": entry(dtype=["F32"])}, b"1234"),
    "an entry that is a number": ({"a": 3}, b""),
    "a header that is a list": ([], b""),
    "a header that is a number": (b"3", b""),
    "no JSON": (b"{", b""),
    "no text": (b"\xff\xfe{}", b""),
    "another encoding": ("{}".encode("utf-16"), b""),
    "nothing": (b"", b""),
    "deep": (b"[" * 100_000, b""),
    "deep in an entry": (b'{"a":' * 100_000, b""),
    "two of one name": (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":3}', b""),
    "a number of many digits": (b'{"a":' + b"9" * 10_000 + b"}", b""),
    "metadata that are a list": ({"__metadata__": ["a"]}, b""),
    "metadata of numbers": ({"__metadata__": {"a": 3}}, b""),
    "a dtype of ours that hides another": (
        {"__metadata__": {"aioflow.dtypes": '{"a": {"dtype": "resource", "shape": [1]}}'}, "a": entry()},
        b"1234",
    ),
    "dtypes of ours that are no map": ({"__metadata__": {"aioflow.dtypes": "[1]"}, "a": entry()}, b"1234"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_malformed_file_is_refused_at_open(case: str, tmp_path: Path) -> None:
    with pytest.raises(DataLossError, match=r"m\.safetensors"):
        safetensors.open(written(tmp_path / "m.safetensors", *HOSTILE[case]))


@pytest.mark.parametrize("start", [b"", b"1234", struct.pack("<Q", 2**63), struct.pack("<Q", 2) + b"{"])
def test_header_longer_than_the_file_is_refused(start: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(start)
    with pytest.raises(DataLossError, match="truncated"):
        safetensors.open(tmp_path / "m.safetensors")


def test_invalid_bool_bytes_are_refused_at_read(tmp_path: Path) -> None:
    """Reject a bool byte of 2: NumPy's results for it are undefined."""
    weights = safetensors.open(written(tmp_path / "m.safetensors", {"a": entry(dtype="BOOL", shape=[4])}, b"\0\1\2\0"))
    for read in (weights.__getitem__, weights.read):
        with pytest.raises(DataLossError, match="tensor a is not valid"):
            read("a")


def test_unsupported_dtype_is_refused_at_read_not_at_open(tmp_path: Path) -> None:
    header = {"f4": entry(0, 4, [8], "F4"), "x": entry(4, 8)}
    weights = safetensors.open(written(tmp_path / "m.safetensors", header, bytes(8)))
    assert weights.names() == ["f4", "x"]
    np.testing.assert_array_equal(weights["x"], np.zeros(1, np.float32))
    for read in (weights.__getitem__, weights.read, weights.entry):
        with pytest.raises(UnimplementedError, match="F4"):
            read("f4")


def test_empty_tensors_may_lie_at_any_offset(tmp_path: Path) -> None:
    header = {"full": entry(0, 4), "empty": entry(0, 0, [0]), "last": entry(4, 4, [3, 0])}
    assert safetensors.open(written(tmp_path / "m.safetensors", header, bytes(4))).names() == ["empty", "full", "last"]
