"""The arrays that TensorFlow computed for the tests of `tests/parity`, in `tests/golden`.

`pytest --tensorflow` computes them again and writes those that differ by more than a test's tolerance. Without it the
tests compare with the stored arrays, so that they run without TensorFlow.
"""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ml_dtypes  # noqa: F401 - makes "bfloat16" a name of a NumPy dtype
import msgpack
import numpy as np

FOLDER: Final = Path(__file__).parent.parent / "golden"
_ARRAY, _STRINGS, _SCALAR, _SAMPLE = 1, 2, 3, 4
_LARGE: Final = 1 << 12  # bytes of an array of which only a sample is stored


@dataclass(frozen=True)
class Sample:
    """A few elements of a large array.

    Attributes:
        shape: Shape of the array.
        step: Distance of the elements in the flat array.
        elements: The elements.
    """

    shape: tuple[int, ...]
    step: int
    elements: np.ndarray[Any, Any]


class GoldenFile:
    """The stored results of one module of tests, by test and number of the comparison in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, Any] = _read(path) if path.exists() else {}
        self._used: set[str] = set()
        self._is_changed = False

    def __getitem__(self, key: str) -> Any:
        """Return a stored result.

        Raises:
            KeyError: none is stored.
        """
        entry = self._entries[key]
        self._used.add(key)
        return entry

    def __setitem__(self, key: str, entry: Mapping[str, Any]) -> None:
        self._entries[key] = entry
        self._used.add(key)
        self._is_changed = True

    def write(self, *, only_used: bool) -> None:
        """Write the file if it changed. `only_used` drops results that no test read, if all of them ran."""
        kept = {key: self._entries[key] for key in sorted(self._used if only_used else self._entries)}
        if kept and (self._is_changed or len(kept) < len(self._entries)):
            self._path.parent.mkdir(exist_ok=True)
            packed = msgpack.packb(kept, default=_packed)
            self._path.write_bytes(lzma.compress(packed, preset=9 | lzma.PRESET_EXTREME))


def _read(path: Path) -> dict[str, Any]:
    entries: dict[str, Any] = msgpack.unpackb(lzma.decompress(path.read_bytes()), ext_hook=_unpacked)
    return entries


def _packed(value: Any) -> msgpack.ExtType:
    if isinstance(value, Sample):
        return _ext(_SAMPLE, value.elements, value.shape, value.step)
    array = np.asarray(value)
    if array.dtype == object:
        return msgpack.ExtType(_STRINGS, msgpack.packb([array.shape, array.ravel().tolist()]))
    if array.nbytes > _LARGE:
        step = array.nbytes // _LARGE + 1
        return _ext(_SAMPLE, array.ravel()[::step], array.shape, step)
    return _ext(_ARRAY if isinstance(value, np.ndarray) else _SCALAR, array)


def _ext(kind: int, array: np.ndarray[Any, Any], *more: Any) -> msgpack.ExtType:
    return msgpack.ExtType(kind, msgpack.packb([array.dtype.name, array.shape, array.tobytes(), *more]))


def _unpacked(kind: int, data: bytes) -> Any:
    if kind == _STRINGS:
        shape, items = msgpack.unpackb(data)
        array = np.empty(len(items), object)
        array[:] = items
        return array.reshape(shape)
    name, shape, content, *of = msgpack.unpackb(data)
    array = np.frombuffer(content, np.dtype(name)).reshape(shape)
    if kind == _SAMPLE:
        return Sample(tuple(of[0]), of[1], array)
    return array[()] if kind == _SCALAR else array


def inputs_digest(arrays: Sequence[np.ndarray[Any, Any]], *options: object) -> str:
    """Return a digest of the inputs of a comparison: results for other inputs must not be compared.

    Of floating-point inputs only dtypes and shapes count, since the last bits may depend on NumPy's version.
    """
    digest = hashlib.sha256(repr(options).encode())
    for array in arrays:
        exact = array.dtype.kind in "biuO"
        digest.update(f"{array.dtype.name} {array.shape} {array.tolist() if exact else ''}".encode())
    return digest.hexdigest()[:16]
