"""Malformed files: opening and reading returns arrays or raises a typed error, whatever the contents."""

from __future__ import annotations

import json
import math
import random
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from aioflow.errors import AioflowError
from aioflow.formats.tensor_file import TensorFile
from aioflow.interop import safetensors
from tests.support.random_examples import examples

NUMBERS = st.one_of(
    st.integers(-2, 20), st.sampled_from([2**31, 2**53, 2**62, 2**63, 2**64, 10**40, -1, True, 0.0, 4.0])
)
NAMES = st.sampled_from(["a", "b", "__metadata__", "", "\ud800", "é"])
JUNK: Any = st.recursive(
    st.one_of(st.none(), NUMBERS, st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=4,
)
DTYPES = st.sampled_from(["F32", "U8", "BOOL", "BF16", "F64", "I64", "C64", "F4", "F8_E4M3", "F31"])
OURS = st.sampled_from(["string", "complex64", "complex128", "resource", "float32", "no"])


# Module constants: hypothesis spends longer validating a new strategy than drawing from it.
SIZES = st.lists(st.integers(0, 3), max_size=3)
WIDTHS = st.sampled_from([1, 2, 4, 8])
BEGINS = st.sampled_from([0, 0, 4, 8, 12])
KEYS = st.sampled_from(["dtype", "shape", "data_offsets", None, None])
WRONG = st.one_of(JUNK, st.lists(NUMBERS, max_size=3))
LOGICAL = st.fixed_dictionaries({"dtype": OURS, "shape": st.lists(NUMBERS, max_size=2)})
YES_OR_NO = st.booleans()
BYTES = st.binary(max_size=40)
FEW_BYTES = st.binary(max_size=3)
LENGTHS = st.one_of(st.none(), st.none(), st.integers(0, 2**64 - 1))
CUTS = st.integers(0, 3)
SPOTS = st.integers(0, 300)


@st.composite
def entries(draw: Callable[..., Any]) -> Any:
    """Draw the header entry of a tensor: often valid, often nearly valid."""
    shape, begin = draw(SIZES), draw(BEGINS)
    size = math.prod(shape) * draw(WIDTHS)
    entry: dict[str, Any] = {"dtype": draw(DTYPES), "shape": shape, "data_offsets": [begin, begin + size]}
    key = draw(KEYS)
    if key is not None:
        entry[key] = draw(WRONG)
    return entry


HEADERS = st.dictionaries(NAMES, st.one_of(entries(), entries(), JUNK), max_size=3)


@st.composite
def contents(draw: Callable[..., Any]) -> bytes:
    """Draw the bytes of a file."""
    header: Any = draw(HEADERS)
    if draw(YES_OR_NO):
        header["__metadata__"] = {"aioflow.dtypes": json.dumps({"a": draw(LOGICAL), "b": draw(LOGICAL)})}
    raw = json.dumps(header).encode()
    if draw(YES_OR_NO):
        spot = draw(SPOTS) % (len(raw) + 1)
        raw = raw[:spot] + draw(FEW_BYTES) + raw[spot + draw(CUTS) :]
    length = draw(LENGTHS)
    data: bytes = draw(BYTES)
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def _read_all(path: Path) -> None:
    with suppress(AioflowError):
        weights = safetensors.open(path)
        for name in weights:
            entry = weights.entry(name)
            for array in (weights[name], weights.read(name)):
                assert (array.shape, array.dtype) == (entry.shape, entry.dtype.np_dtype)
                array.tobytes()


def _check(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.safetensors"
        path.write_bytes(data)
        _read_all(path)


INDEXED = st.dictionaries(
    st.text(max_size=3), st.one_of(JUNK, st.sampled_from(["one.safetensors", "../one"])), max_size=2
)


def _check_index(index: Any, raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "one.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
        (Path(folder) / "model.safetensors.index.json").write_bytes(json.dumps(index).encode() + raw)
        _read_all(Path(folder))


@given(contents())
@settings(max_examples=examples(400), deadline=None, suppress_health_check=list(HealthCheck))
def test_generated_files_return_arrays_or_raise_typed_errors(data: bytes) -> None:
    _check(data)


@given(st.one_of(st.fixed_dictionaries({"weight_map": INDEXED}), JUNK), st.one_of(st.just(b""), st.binary(max_size=2)))
@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
def test_generated_indices_return_arrays_or_raise_typed_errors(index: Any, raw: bytes) -> None:
    _check_index(index, raw)


# ── many random files ────────────────────────────────────────────────────────────────────────────────────────────────

SOME_JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 1, 20, 2**31, 2**53, 2**62, 2**63, 2**64, 10**40, 0.0, 4.0, 1e308, "", "x", "\ud800",
    [], [[]], [None], [1, 2], [-1], [4.0], [2**63], [2**40, 2**40], [0, 2**64], [1] * 70, {}, {"a": 1}, [0, 4, 8],
)  # fmt: skip
BYTES_OF = {"F32": 4, "BF16": 2, "F64": 8, "I64": 8, "C64": 8}
CODES = ("F32", "F32", "U8", "BOOL", "BF16", "F64", "I64", "C64", "F4", "F8_E4M3", "F31")
LOGICALS = ("string", "complex64", "complex128", "resource", "float32", "no")
KEPT = 25  # one of this many files is written to disk and mapped


class _InMemory:
    """A path stand-in whose file exists only in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self, mode: str = "rb") -> BytesIO:
        return BytesIO(self._data)

    def __str__(self) -> str:
        return "a file in memory"


def _entry(rng: random.Random, begin: int) -> dict[str, Any]:
    shape = [rng.randrange(4) for _ in range(rng.randrange(4))]
    code = rng.choice(CODES)
    size = math.prod(shape) * (rng.choice((1, 2, 4, 8)) if rng.random() < 0.1 else BYTES_OF.get(code, 1))
    entry: dict[str, Any] = {"dtype": code, "shape": shape, "data_offsets": [begin, begin + size]}
    if rng.random() < 0.3:
        entry[rng.choice(("dtype", "shape", "data_offsets"))] = rng.choice(SOME_JUNK)
    return entry


def _file(rng: random.Random) -> bytes:
    """Return a random file like `contents`, in a tenth of the time."""
    header: Any = {}
    begin = 0
    for name in rng.sample(("a", "b", "", "é", "\ud800", "__metadata__"), rng.randrange(4)):
        header[name] = _entry(rng, begin) if rng.random() < 0.9 else rng.choice(SOME_JUNK)
        offsets = header[name].get("data_offsets") if isinstance(header[name], dict) else None
        if isinstance(offsets, list) and len(offsets) == 2 and type(offsets[1]) is int and rng.random() < 0.9:
            begin = offsets[1]
    if rng.random() < 0.5:
        logical = {
            name: {"dtype": rng.choice(LOGICALS), "shape": rng.choice(([], [1], [2], rng.choice(SOME_JUNK)))}
            for name in ("a", "b")[: rng.randrange(3)]
        }
        header["__metadata__"] = rng.choice(({"aioflow.dtypes": json.dumps(logical)}, rng.choice(SOME_JUNK)))
    raw = json.dumps(header).encode()
    if rng.random() < 0.3:
        spot = rng.randrange(len(raw) + 1)
        raw = raw[:spot] + rng.randbytes(rng.randrange(4)) + raw[spot + rng.randrange(4) :]
    length = len(raw) if rng.random() < 0.9 else rng.choice((0, 1, len(raw) + 1, 2**31, 2**63, rng.randrange(2**64)))
    most = begin if 0 <= begin < 1000 and rng.random() < 0.8 else rng.randrange(40)
    return struct.pack("<Q", length) + raw + rng.choice((bytes, rng.randbytes))(most)


def _read_in_memory(data: bytes) -> int:
    """Return the number of tensors read."""
    read = 0
    with suppress(AioflowError):
        path: Any = _InMemory(data)
        file = TensorFile(path)
        for name, entry in file.tensors.items():
            with suppress(AioflowError):
                array = file.read(name)
                assert (array.shape, array.dtype) == (entry.shape, entry.dtype.np_dtype)
                array.tobytes()
                read += 1
    return read


def _each(count: int, seed: int, folder: Path) -> None:
    read = 0
    for case in range(count):
        data = _file(random.Random(f"{seed}-{case}"))
        try:
            read += _read_in_memory(data)
            if case % KEPT == 0:
                (folder / "m.safetensors").write_bytes(data)
                _read_all(folder / "m.safetensors")
        except Exception as error:
            raise AssertionError(f"case {case} of seed {seed}: {data!r}") from error
    assert read > count / 20


def test_a_thousand_random_files_are_read_or_refused(quick_path: Path) -> None:
    _each(1000, 0, quick_path)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(1, 11))
def test_a_hundred_thousand_random_files_are_read_or_refused(quick_path: Path, seed: int) -> None:
    _each(10_000, seed, quick_path)
