"""Files that somebody has made up: whatever is in them, opening and reading ends with arrays or a typed error."""

from __future__ import annotations

import json
import math
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from aioflow.errors import AioflowError
from aioflow.interop import safetensors

FILES, PARTS = 100_000, 50

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


# Made once: hypothesis looks at each new one for longer than it takes to draw from it.
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
    """What a header says of a tensor: often right, often nearly so."""
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
    """The bytes of a file."""
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
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_files(data: bytes) -> None:
    _check(data)


@given(st.one_of(st.fixed_dictionaries({"weight_map": INDEXED}), JUNK), st.one_of(st.just(b""), st.binary(max_size=2)))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_indices(index: Any, raw: bytes) -> None:
    _check_index(index, raw)


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(PARTS))
@given(data=contents())
@settings(max_examples=FILES // PARTS, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_a_hundred_thousand_files(part: int, data: bytes) -> None:
    _check(data)
