"""The array namespace of kernels on a GPU: CuPy's, with the few differences that kernels rely on.

CuPy's `ufunc.at` uses atomic operations, which exist for some functions and dtypes only, and it has `reduceat` for
`add` alone. Here both work for the functions that kernels fold with: `add`, `subtract` (`at` only), `multiply`,
`maximum` and `minimum`. `reduceat`, and `at` without an atomic operation, use a segmented scan: log n passes, with the
same result each time. `inv`, `cholesky` and `solve` raise for matrices that they cannot invert or factor, as NumPy's
do, and `solve` accepts batches that broadcast.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

# The dtypes for which cupy 13 and 14 have atomic operations.
_ATOMIC: Final = {
    "add": frozenset(("int32", "uint32", "uint64", "float16", "float32", "float64", "complex64", "complex128")),
    "maximum": frozenset(("int32", "uint32", "uint64", "float32", "float64")),
    "minimum": frozenset(("int32", "uint32", "uint64", "float32", "float64")),
}
_FOLDING: Final = ("add", "subtract", "multiply", "maximum", "minimum")
_CHECKED: Final = ("inv", "cholesky")


class CupyNamespace:
    """`cupy`, or its replacement in tests, with the differences described above."""

    def __init__(self, cupy: Any, cupyx: Any) -> None:
        self._cupy = cupy
        for name in _FOLDING:
            setattr(self, name, _Ufunc(cupy, getattr(cupy, name), name))
        self.linalg = _linear_algebra(cupy, cupyx)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cupy, name)
        setattr(self, name, found)  # later lookups find it without this call
        return found


class _Ufunc:
    """A binary ufunc with `at` and `reduceat` for all of its dtypes. Its only other method is `reduce`."""

    __slots__ = ("__name__", "_call", "_cupy", "_native")

    def __init__(self, cupy: Any, native: Any, name: str) -> None:
        self._cupy, self._native, self.__name__ = cupy, native, name
        self._call = native.__call__

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._call(*args, **keywords)

    @property
    def reduce(self) -> Any:
        """CuPy's own `reduce`."""
        return self._native.reduce

    def at(self, target: Any, rows: Any, updates: Any) -> None:
        """Combine `updates[i]` into `target[rows[i]]`, in place and for every index i of `rows`; rows may repeat.

        `updates` broadcasts to the shape of `target[rows]`. Floats and complex numbers are added by atomic operations,
        if their dtype has them, in no fixed order, so the last bits of their sums may differ.
        """
        cupy, apply = self._cupy, self._native
        # Atomic subtraction as addition of the negative; unsigned integers and bools have no negative.
        if self.__name__ == "subtract" and target.dtype.kind not in "bu":
            apply, updates = cupy.add, -updates
        if target.dtype.name in _ATOMIC.get("add" if apply is cupy.add else self.__name__, ()):
            apply.at(target, rows, updates)
        elif rows.size:
            self._fold_into(target, rows, updates, apply)

    def _fold_into(self, target: Any, rows: Any, updates: Any, apply: Any) -> None:
        cupy = self._cupy
        flat = rows.reshape(-1)
        given = cupy.broadcast_to(updates, rows.shape + target.shape[1:]).reshape(flat.shape + target.shape[1:])
        # Equal indices become neighbours, each run of them a segment.
        order = cupy.argsort(flat)  # stable
        # x - a - b = x - (a + b): the updates of a row are added up before they are subtracted.
        fold = cupy.add if self.__name__ == "subtract" else self._native
        sums, ends = _segment_scan(cupy, fold, given[order], flat[order])
        touched = flat[order][ends]
        target[touched] = apply(target[touched], sums[ends]).astype(target.dtype)

    def reduceat(self, array: Any, starts: Any, axis: int = 0, dtype: Any = None) -> Any:
        """Return the combined rows from each start up to the next one (to the end for the last), along axis 0.

        `starts` must begin with 0 and ascend strictly. `axis` is ignored: kernels pass 0.
        """
        cupy = self._cupy
        # The running count of starts gives all rows of a segment the same number.
        marks = cupy.zeros(len(array), dtype=cupy.int64)
        marks[starts] = 1
        sums, ends = _segment_scan(
            cupy, self._native, array if dtype is None else array.astype(dtype, copy=False), cupy.cumsum(marks)
        )
        return sums[ends]


def _segment_scan(cupy: Any, fold: Any, rows: Any, ids: Any) -> tuple[Any, Any]:
    """Return inclusive scans of the rows within each run of equal ids, and a mask of the runs' last rows.

    After the pass of width w, row i holds the combination of the last 2w rows of its run up to i (Hillis, Steele: "Data
    parallel algorithms", CACM 29, 1986).
    """
    count, scanned = len(ids), rows
    wide = (slice(None), *(None,) * (rows.ndim - 1))
    width = 1
    while width < count:
        same = (ids[width:] == ids[:-width])[wide]
        combined = fold(scanned[:-width], scanned[width:]).astype(scanned.dtype, copy=False)
        scanned = cupy.concatenate([scanned[:width], cupy.where(same, combined, scanned[width:])])
        width *= 2
    ends = cupy.ones(count, dtype=bool)
    # The last row of a run has the combination of the whole run.
    ends[:-1] = ids[1:] != ids[:-1]
    return scanned, ends


def _linear_algebra(cupy: Any, cupyx: Any) -> SimpleNamespace:
    own = cupy.linalg
    names = (name for name in dir(own) if not name.startswith("_"))
    made = SimpleNamespace(**{name: getattr(own, name) for name in names})

    def checked(function: Any) -> Any:
        def call(*args: Any) -> Any:
            with cupyx.errstate(linalg="raise"):
                return function(*args)

        return call

    def solve(a: Any, b: Any) -> Any:
        batch = cupy.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        if batch != a.shape[:-2] or batch != b.shape[:-2]:
            a = cupy.broadcast_to(a, batch + a.shape[-2:])
            b = cupy.broadcast_to(b, batch + b.shape[-2:])
        with cupyx.errstate(linalg="raise"):
            return own.solve(a, b)

    for name in _CHECKED:
        setattr(made, name, checked(getattr(own, name)))
    made.solve = solve
    return made
