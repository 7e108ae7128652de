"""Arrays as strict as CuPy's, backed by NumPy: code that would fail on a GPU fails here.

Names, parameters and dtype loops were recorded from a real CuPy (`cupy_surface.json`). No array moves implicitly to the
host (`__array__` raises) or from the host. A result of rank 0 is an array, never a scalar. Of several assignments to
one place the first may win, where NumPy's last does. Operations that make the host wait for the device (`bool`, `int`,
`tolist`, a result whose shape depends on values) are counted.

A `tracker` receives every access to an array's memory; `fake_driver` has one that finds races between streams.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Protocol

import ml_dtypes
import numpy as np

__all__ = ["FakeArray", "FakeCupy", "Memory", "Tracker"]

SURFACE: Final[dict[str, Any]] = json.loads((Path(__file__).parent / "cupy_surface.json").read_text(encoding="utf-8"))

# Functions whose result shape, or whose errors, depend on values.
WAITING: Final = frozenset(
    ("argwhere", "array_equal", "bincount", "count_nonzero", "flatnonzero", "nonzero", "unique", "unravel_index")
)
TAKES_HOST_ARRAYS: Final = frozenset(("array", "asarray", "asanyarray", "ascontiguousarray"))
SCATTERED: Final = {
    "add": "int32 uint32 uint64 float16 float32 float64 complex64 complex128",
    "sub": "int32 uint32",
    "max": "int32 uint32 uint64 float32 float64",
    "min": "int32 uint32 uint64 float32 float64",
}
NUMPY_NAMES: Final = {"abs": "absolute", "conj": "conjugate", "fix": "trunc"}


class Memory:
    """The memory that views share; a tracker identifies arrays by it."""

    __slots__ = ("__weakref__", "history", "root")

    def __init__(self, root: Any) -> None:
        self.root: np.ndarray[Any, Any] = root
        self.history: Any = None


class Tracker(Protocol):
    """Receiver of memory accesses and of host waits."""

    def read(self, memory: Memory) -> None:
        """Record that the current stream reads the memory."""

    def write(self, memory: Memory) -> None:
        """Record that the current stream writes the memory."""

    def wait(self) -> None:
        """Record that the host waits for the current stream."""

    def make(self, memory: Memory) -> None:
        """Record that the memory has been allocated."""

    def did(self, again: Callable[[], object]) -> None:
        """Record work of the current stream; `again` repeats it on the arrays' current values."""


class FakeArray:
    """An array on the device."""

    __slots__ = ("__weakref__", "_base", "_value", "memory", "xp")
    __array_priority__ = 100

    def __init__(self, xp: FakeCupy, value: Any, memory: Memory | None = None, base: FakeArray | None = None) -> None:
        self.xp = xp
        self._value: np.ndarray[Any, Any] = np.asarray(value)
        if self._value.dtype.hasobject:
            raise ValueError(f"Unsupported dtype {self._value.dtype}")
        self.memory = memory or Memory(self._value)
        self._base = base
        if memory is None and xp.tracker is not None:
            xp.tracker.make(self.memory)

    # -- the host's side -------------------------------------------------------------------------------------------

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")

    def get(self, *args: Any, **kwargs: Any) -> Any:
        return self._fetched().copy()

    def item(self) -> Any:
        return self._fetched().item()

    def tolist(self) -> Any:
        return self._fetched().tolist()

    def __bool__(self) -> bool:
        return bool(self._fetched())

    def __int__(self) -> int:
        return int(self._fetched())

    def __float__(self) -> float:
        return float(self._fetched())

    def __complex__(self) -> complex:
        return complex(self._fetched())

    def _fetched(self) -> Any:
        value = self.xp.reading(self)
        self.xp.waits()
        return value

    # -- shape and memory ------------------------------------------------------------------------------------------

    @property
    def raw(self) -> np.ndarray[Any, Any]:
        """The values, for the test and the driver."""
        return self._value

    @property
    def base(self) -> Any:
        return self._base

    @property
    def flags(self) -> Any:
        flags = self._value.flags
        return SimpleNamespace(c_contiguous=flags.c_contiguous, f_contiguous=flags.f_contiguous, owndata=flags.owndata)

    def __len__(self) -> int:
        return len(self._value)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in SURFACE["array"]:
            raise AttributeError(f"a CuPy array has no attribute {name!r}")
        found = getattr(self._value, name)
        if not callable(found):
            return self.xp.wrapped(found, self) if isinstance(found, np.ndarray) else found
        if name in ("nonzero",):
            self.xp.waits()

        def method(*args: Any, **kwargs: Any) -> Any:
            return self.xp.call(found, args, kwargs, self)

        return method

    @property
    def real(self) -> Any:
        return self.xp.wrapped(self._value.real, self)

    @real.setter
    def real(self, value: Any) -> None:
        given, target = self.xp.argument(value), self.xp.writing(self)
        self.xp.does(lambda: setattr(target, "real", given))

    @property
    def imag(self) -> Any:
        return self.xp.wrapped(self._value.imag, self)

    @imag.setter
    def imag(self, value: Any) -> None:
        given, target = self.xp.argument(value), self.xp.writing(self)
        self.xp.does(lambda: setattr(target, "imag", given))

    # -- indexing --------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        plain, source = self._index(index), self._value
        return self.xp.made(lambda: source[plain], self)

    def __setitem__(self, index: Any, value: Any) -> None:
        plain = self._index(index)
        given = self.xp.argument(value)
        target = self.xp.writing(self)
        arrays = [i for i in (plain if isinstance(plain, tuple) else (plain,)) if isinstance(i, np.ndarray) and i.ndim]
        # In CuPy the first of several assignments to one place may win; here it always does.
        if arrays and arrays[0].dtype != bool and not isinstance(plain, tuple):
            self.xp.does(lambda: _assign_backwards(target, plain, given))
        else:
            self.xp.does(lambda: target.__setitem__(plain, given))

    def _index(self, index: Any) -> Any:
        items = index if isinstance(index, tuple) else (index,)
        for item in items:
            if isinstance(item, list | np.ndarray) and np.ndim(item):
                raise TypeError("an index on the host is copied to the device unseen")
            if isinstance(item, FakeArray) and item.dtype == bool:
                self.xp.waits()
        plain = tuple(self.xp.reading(i) if isinstance(i, FakeArray) else i for i in items)
        return plain if isinstance(index, tuple) else plain[0]

    # -- operators -------------------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or any(isinstance(x, np.ndarray) and x.ndim for x in inputs):
            return NotImplemented
        values = [x.item() if isinstance(x, np.ndarray) else x for x in inputs]
        return getattr(self.xp, ufunc.__name__)(*values, **kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function.__name__ in ("shape", "ndim", "size") and len(args) == 1:
            return getattr(args[0], function.__name__)  # nothing is read
        found = getattr(self.xp, function.__name__, None)
        return NotImplemented if found is None else found(*args, **kwargs)

    def __repr__(self) -> str:
        return f"FakeArray({self._value!r})"

    __hash__ = None  # type: ignore[assignment]  # as an array


def _assign_backwards(target: Any, index: Any, given: Any) -> None:
    whole = np.broadcast_to(given, target[index].shape)
    target[index.reshape(-1)[::-1]] = whole.reshape(-1, *target.shape[1:])[::-1].astype(target.dtype)


def _operator(name: str, swapped: bool = False) -> Callable[[FakeArray, Any], Any]:
    def apply(self: FakeArray, other: Any) -> Any:
        if not _is_operand(other):
            return NotImplemented
        return getattr(self.xp, name)(*((other, self) if swapped else (self, other)))

    return apply


def _in_place(name: str) -> Callable[[FakeArray, Any], Any]:
    def apply(self: FakeArray, other: Any) -> Any:
        return getattr(self.xp, name)(self, other, self)

    return apply


_BINARY: Final = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "power",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "left_shift",
    "rshift": "right_shift",
    "matmul": "matmul",
}
_COMPARING: Final = {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}
for _name, _function in _BINARY.items():
    setattr(FakeArray, f"__{_name}__", _operator(_function))
    setattr(FakeArray, f"__r{_name}__", _operator(_function, swapped=True))
    if _name != "matmul":
        setattr(FakeArray, f"__i{_name}__", _in_place(_function))
for _name, _function in _COMPARING.items():
    setattr(FakeArray, f"__{_name}__", _operator(_function))
for _name, _function in {"neg": "negative", "invert": "invert", "abs": "absolute", "pos": "positive"}.items():
    setattr(FakeArray, f"__{_name}__", lambda self, f=_function: getattr(self.xp, f)(self))


def _is_operand(value: Any) -> bool:
    return isinstance(value, FakeArray | bool | int | float | complex | np.generic) or (
        isinstance(value, np.ndarray) and value.ndim == 0
    )


class FakeUfunc:
    """A ufunc with CuPy's loops and those of the ufunc methods that CuPy has."""

    def __init__(self, xp: FakeCupy, name: str) -> None:
        self.xp = xp
        self.name = self.__name__ = name
        self.loops = [_loop(text) for text in SURFACE["ufuncs"][name]["loops"]]
        self.nin = len(self.loops[0][0])
        self._scatter: str | None = SURFACE["ufuncs"][name]["scatter"]
        self._numpy: Any = getattr(np, NUMPY_NAMES.get(name, name), None)
        self._taken: dict[tuple[Any, ...], bool] = {}

    def _takes(self, dtypes: tuple[Any, ...]) -> bool:
        found = self._taken.get(dtypes)
        if found is None:
            found = self._taken[dtypes] = any(_takes(loop, dtypes) for loop, _ in self.loops)
        return found

    def __call__(self, *args: Any, out: Any = None, dtype: Any = None, casting: str = "same_kind") -> Any:
        inputs = args[: self.nin]
        if len(args) > self.nin:
            out = args[self.nin]
        for value in inputs:
            if not _is_operand(value) or isinstance(value, np.ndarray):
                raise TypeError(f"Unsupported type {type(value)}")
        if self._numpy is None:
            raise NotImplementedError(f"the fake has no {self.name}")
        arrays = tuple(x.dtype for x in inputs if isinstance(x, FakeArray))
        if dtype is None and not self._takes(arrays):
            raise TypeError(f"Wrong type {arrays} of arguments for cupy_{self.name}")
        values = [self.xp.argument(x) for x in inputs]
        keywords = {} if dtype is None else {"dtype": dtype}
        compute = self._numpy
        if out is None:
            return self.xp.made(lambda: np.asarray(compute(*values, **keywords)), None)
        if not isinstance(out, FakeArray):
            raise TypeError(f"an output that is no array: {type(out)}")
        target = self.xp.writing(out)
        self.xp.does(lambda: np.copyto(target, compute(*values, **keywords), casting=casting))  # type: ignore[arg-type]
        return out

    def at(self, a: FakeArray, indices: Any, b: Any = None) -> None:
        if self._scatter is None:
            raise NotImplementedError(f"`{self.name}.at` is not supported yet")
        if a.dtype.name not in SCATTERED[self._scatter]:
            raise TypeError(f"scatter_{self._scatter} does not support {a.dtype}")
        index, given = a._index(indices), self.xp.argument(b)
        target, combine = self.xp.writing(a), self._numpy
        self.xp.does(lambda: combine.at(target, index, given))

    def reduce(
        self, array: FakeArray, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> Any:
        if self.name not in ("add", "multiply"):
            raise NotImplementedError(f"`{self.name}.reduce` is not supported yet")
        total = array.sum if self.name == "add" else array.prod
        return total(axis, dtype, out, keepdims)

    def reduceat(self, array: FakeArray, indices: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        if self.name != "add":
            raise NotImplementedError(f"`{self.name}.reduceat` is not supported yet")
        return self.xp.call(np.add.reduceat, (array, indices, axis, dtype), {}, None)


def _loop(text: str) -> tuple[list[Any], Any]:
    given, made = text.split("->")
    return [_dtype(name) for name in given.split(",")], _dtype(made)


def _dtype(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype("V1" if name.startswith("void") else name)


def _takes(loop: list[Any], arrays: tuple[Any, ...]) -> bool:
    return all(any(np.can_cast(dtype, place, "safe") for place in loop) for dtype in arrays) and (
        len(arrays) < 2 or any(all(np.can_cast(d, p, "safe") for d in arrays) for p in loop)
    )


class FakeCupy:
    """A fake of the namespace `cupy`.

    Attributes:
        tracker: Receiver of memory accesses, or None.
        waited: Number of times the host has waited for the device.
        raises_singular: Whether singular systems raise, as after `cupyx.errstate(linalg="raise")`, instead of giving
            NaN.
    """

    def __init__(self, tracker: Tracker | None = None) -> None:
        self.tracker = tracker
        self.waited = 0
        self.raises_singular = False
        self._ufuncs = {name: FakeUfunc(self, name) for name in SURFACE["ufuncs"]}
        self.linalg = SimpleNamespace(
            **{name: self._linear(name) for name in SURFACE["linalg"]}, LinAlgError=np.linalg.LinAlgError
        )
        self.fft = SimpleNamespace(**{name: self._transform(name) for name in SURFACE["fft"]})
        self.lib = SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=self._as_strided))
        self.ndarray = FakeArray

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in SURFACE["ufuncs"]:
            return self._ufuncs[name]
        if name in SURFACE["functions"]:
            return self._function(name)
        if name in SURFACE["types"] or name in SURFACE["constants"]:
            return getattr(np, name)
        raise AttributeError(f"CuPy has no {name!r}")

    # -- calls -----------------------------------------------------------------------------------------------------

    def call(self, function: Any, args: Any, kwargs: Any, owner: FakeArray | None) -> Any:
        """Call a NumPy function with plain values and wrap its result."""
        out = kwargs.get("out")
        plain = [self.argument(a) for a in args]
        named = {k: self.argument(v) for k, v in kwargs.items() if k != "out"}
        if isinstance(out, FakeArray):
            target = self.writing(out)
            self.does(lambda: target.__setitem__(..., function(*plain, **named)))
            return out
        return self.made(lambda: function(*plain, **named), owner)

    def _function(self, name: str) -> Callable[..., Any]:
        parameters = SURFACE["functions"][name]

        def call(*args: Any, **kwargs: Any) -> Any:
            if parameters is not None:
                unknown = set(kwargs) - set(parameters)
                if unknown or len(args) > len(parameters):
                    raise TypeError(
                        f"{name} has the parameters {parameters}, not {sorted(unknown)} ({len(args)} given)"
                    )
            self._check(name, args, kwargs)
            if name in WAITING or (name == "where" and len(args) == 1):
                self.waits()
            if name == "copyto":
                return self._copy(*args, **kwargs)
            own = args[0] if args and isinstance(args[0], FakeArray) else None
            if name in ("array", "copy"):
                own = None
            if name in ("asarray", "ascontiguousarray") and own is not None and not (set(kwargs) - {"dtype"}):
                dtype = kwargs.get("dtype", args[1] if len(args) > 1 else None)
                made = getattr(np, name)(self.reading(own), dtype)
                return own if made is own.raw else self.wrapped(made, own)
            if name in TAKES_HOST_ARRAYS:
                args = tuple(np.array(a) if isinstance(a, np.ndarray) else a for a in args)
            return self.call(getattr(np, NUMPY_NAMES.get(name, name)), args, kwargs, own)

        return call

    def _check(self, name: str, args: Any, kwargs: Any) -> None:
        if name not in TAKES_HOST_ARRAYS and any(
            isinstance(a, np.ndarray) and a.ndim
            for value in (*args, *kwargs.values())
            for a in (value if isinstance(value, list | tuple) else (value,))
        ):
            raise TypeError(f"{name} takes CuPy's arrays, not NumPy's")
        if name in ("argsort", "sort") and kwargs.get("kind") not in (None, "stable"):
            raise ValueError("kind can only be None or 'stable'")
        if name in ("where", "searchsorted", "take", "concatenate", "stack", "bincount", "unravel_index"):
            first = args[0][0] if name in ("concatenate", "stack") else args[0]
            if not isinstance(first, FakeArray):
                raise TypeError(f"{name} of {type(first)}")

    def _linear(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "solve" and args[1].ndim > 1 and args[0].shape[:-1] != args[1].shape[:-1]:
                raise ValueError("a must have (..., M, M) shape and b must have (..., M, K)")
            try:
                return self.call(getattr(np.linalg, name), args, kwargs, None)
            except np.linalg.LinAlgError:
                if self.raises_singular:
                    raise
                return self.wrapped(np.full(args[-1].shape, np.nan, args[0].dtype), None)

        return call

    def _transform(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            unknown = set(kwargs) - set(SURFACE["fft"][name])
            if unknown or not isinstance(args[0], FakeArray):
                raise TypeError(f"{name} of {type(args[0])}, with {sorted(unknown)}")
            return self.call(getattr(np.fft, name), args, kwargs, None)

        return call

    @contextmanager
    def errstate(self, *, linalg: str) -> Iterator[None]:
        """Set `raises_singular` for the block, as `cupyx.errstate` does."""
        before, self.raises_singular = self.raises_singular, linalg == "raise"
        try:
            yield
        finally:
            self.raises_singular = before

    def _copy(self, dst: FakeArray, src: Any, casting: Any = "same_kind", where: Any = None) -> None:
        given, mask = self.argument(src), True if where is None else self.argument(where)
        target = self.writing(dst)
        self.does(lambda: np.copyto(target, given, casting=casting, where=mask))

    def _as_strided(self, x: FakeArray, shape: Any = None, strides: Any = None) -> Any:
        return self.wrapped(np.lib.stride_tricks.as_strided(self.reading(x), shape, strides), x)

    # -- values ----------------------------------------------------------------------------------------------------

    def argument(self, value: Any) -> Any:
        """Return the plain value of an argument."""
        if isinstance(value, FakeArray):
            return self.reading(value)
        if isinstance(value, list | tuple):
            return type(value)(self.argument(v) for v in value)
        return value

    def wrapped(self, value: Any, owner: FakeArray | None) -> Any:
        """Wrap a result as a device array: a view of `owner` if they share memory."""
        if isinstance(value, tuple | list):
            parts = [self.wrapped(v, owner) for v in value]
            return parts if isinstance(value, list) else tuple(parts)
        if not isinstance(value, np.ndarray | np.generic):
            return value
        if owner is not None and isinstance(value, np.ndarray) and np.may_share_memory(value, owner.raw):
            return FakeArray(self, value, owner.memory, owner if owner.base is None else owner.base)
        made = FakeArray(self, np.array(value))
        self.writing(made)
        return made

    def made(self, compute: Callable[[], Any], owner: FakeArray | None) -> Any:
        """Return the wrapped result of `compute`; record it as work of the stream unless it is only a view."""
        with np.errstate(all="ignore"):
            value = compute()
        result = self.wrapped(value, owner)
        if self.tracker is not None:
            views = [a for a in _leaves(result) if owner is not None and a.memory is owner.memory]
            if owner is not None and not views:
                self.tracker.read(owner.memory)
            fresh = [a.raw for a in _leaves(result) if owner is None or a.memory is not owner.memory]
            if fresh:
                self.tracker.did(lambda: self._again(compute, result, fresh))
        return result

    @staticmethod
    def _again(compute: Callable[[], Any], result: Any, fresh: list[Any]) -> None:
        with np.errstate(all="ignore"):
            value = compute()
        values = list(value) if isinstance(result, tuple | list) else [value]
        for target, new in zip(fresh, values, strict=True):
            target[...] = new

    def does(self, work: Callable[[], object]) -> None:
        """Run work of the current stream that writes to existing arrays."""
        with np.errstate(all="ignore"):
            work()
        if self.tracker is not None:
            self.tracker.did(work)

    def reading(self, array: FakeArray) -> np.ndarray[Any, Any]:
        """Return the values, and record a read by the current stream."""
        if self.tracker is not None:
            self.tracker.read(array.memory)
        return array.raw

    def writing(self, array: FakeArray) -> np.ndarray[Any, Any]:
        """Return the values, and record a write by the current stream."""
        if self.tracker is not None:
            self.tracker.write(array.memory)
        return array.raw

    def waits(self) -> None:
        """Count a wait of the host for the current stream."""
        self.waited += 1
        if self.tracker is not None:
            self.tracker.wait()


def _leaves(result: Any) -> list[FakeArray]:
    return [a for a in (result if isinstance(result, tuple | list) else [result]) if isinstance(a, FakeArray)]
