"""CUDA graphs: a strand whose shapes repeat is captured once and then launched as one, with a hundredth of the calls.

A graph has the addresses of all arrays built in. So it reads its inputs from arrays of its own, into which they are
copied; it writes to memory of a pool of its own; its results are copied out, since the next launch overwrites them; and
the variables that the strand reads or updates must be in the arrays in which they were when it was captured. What does
not fit is run as usual.

A strand may be captured only if none of its kernels needs a value of the device on the host
(`coverage.is_capturable`). If CUDA refuses all the same, the strand is never tried again.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.errors import FailedPreconditionError
from aioflow.graph import dtypes
from aioflow.kernels.resources import VariableResource
from aioflow_cupy.driver import Driver, Graph, Pool
from aioflow_cupy.streams import Streams

__all__ = ["CaptureStats", "CapturedFunction"]

Function: TypeAlias = Callable[..., tuple[Any, ...]]
Key: TypeAlias = tuple[Any, ...]
Reference: TypeAlias = Callable[[], Any]

_WARM_UP: Final = 2  # runs before a capture: they compile the kernels, and make what kernels make on their first call
_KEPT: Final = 4  # graphs of one strand, by shapes


@dataclass(slots=True)
class CaptureStats:
    """What has become of the calls of one function.

    Attributes:
        plain: Run as usual.
        captured: Graphs made.
        replayed: Launched as a graph.
        refused: Why it will not be captured any more, or None.
    """

    plain: int = 0
    captured: int = 0
    replayed: int = 0
    refused: str | None = None


@dataclass(slots=True)
class _Capture:
    graph: Graph
    pool: Pool
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    variables: tuple[tuple[VariableResource, Any], ...]


@dataclass(slots=True)
class _Shape:
    seen: int = 0
    capture: _Capture | None = None


class CapturedFunction:
    """A function of arrays, run in the compute stream's thread.

    Args:
        function: Takes arrays and other values, returns a tuple. It must do the same work for equal shapes.
        variables: All variables that it reads or updates.
    """

    def __init__(
        self, driver: Driver, streams: Streams, function: Function, variables: Sequence[VariableResource] = ()
    ) -> None:
        self.stats = CaptureStats()
        self._driver = driver
        self._streams = streams
        self._function = function
        self._variables = tuple(variables)
        self._shapes: dict[Key, _Shape] = {}
        self._stays: list[bool] = [False] * len(self._variables)  # which variables the last run left in their arrays

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """What the function returns for these arguments."""
        if self.stats.refused is not None:
            return self._plain(args)
        shape = self._shape(args)
        if shape.capture is None:
            shape.seen += 1
            if shape.seen <= _WARM_UP:
                return self._plain(args)
            shape.capture = self._captured(args)
            if shape.capture is None:
                return self._plain(args)
        if not _variables_in_place(shape.capture):
            shape.capture, shape.seen = None, _WARM_UP - 1  # once more as usual, then captured again
            return self._plain(args)
        return self._replay(shape.capture, args)

    def forget(self) -> None:
        """Drop all graphs, when the device is done with them."""
        self._shapes.clear()

    def _plain(self, args: Sequence[Any]) -> tuple[Any, ...]:
        self.stats.plain += 1
        before = [_reference(v) for v in self._variables]
        made = self._function(*args)
        self._stays = [b() is not None and b() is v.value for b, v in zip(before, self._variables, strict=True)]
        return made

    def _shape(self, args: Sequence[Any]) -> _Shape:
        key = tuple((a.shape, str(a.dtype)) if _is_array(self._driver.xp, a) else _identity(a) for a in args)
        if key not in self._shapes:
            if len(self._shapes) >= _KEPT:
                oldest = next(iter(self._shapes))
                del self._shapes[oldest]
            self._shapes[key] = _Shape()
        return self._shapes[key]

    def _captured(self, args: Sequence[Any]) -> _Capture | None:
        """The graph of the function for arguments like these; its work has not been done."""
        xp, compute = self._driver.xp, self._streams.compute
        inputs = tuple(a.copy() if _is_array(xp, a) else a for a in args)
        before = [_reference(v) for v in self._variables]
        # An update works in place only where nobody else holds the array; the others must outlive what replaces them.
        held = [None if stays else v.value for stays, v in zip(self._stays, self._variables, strict=True)]
        pool = self._driver.private_pool()
        with self._streams.computing(pool.malloc):
            compute.begin_capture()
            self._streams.capturing = True
            try:
                outputs = self._function(*inputs)
                for variable, reference in zip(self._variables, before, strict=True):
                    _write_back(variable, reference())
            except Exception as error:
                self._abandon(error, before)
                return None
            finally:
                self._streams.capturing = False
            try:
                graph = compute.end_capture()
            except Exception as error:
                self._refuse(error, before)
                return None
        self.stats.captured += 1
        del held
        return _Capture(graph, pool, inputs, outputs, tuple((v, v.value) for v in self._variables))

    def _abandon(self, error: Exception, before: Sequence[Reference]) -> None:
        try:
            self._streams.compute.end_capture()
        except Exception as ended:  # CUDA says once more what it has refused
            error.add_note(f"and at its end: {ended}")
        self._refuse(error, before)

    def _refuse(self, error: Exception, before: Sequence[Reference]) -> None:
        self.stats.refused = f"{type(error).__name__}: {error}"
        for variable, reference in zip(self._variables, before, strict=True):
            array = reference()
            if array is not None and variable.value is not array:  # what was noted was never done
                variable.assign(array)

    def _replay(self, capture: _Capture, args: Sequence[Any]) -> tuple[Any, ...]:
        xp = self._driver.xp
        for own, given in zip(capture.inputs, args, strict=True):
            if _is_array(xp, own):
                own[...] = given
        capture.graph.launch(self._streams.compute)
        self.stats.replayed += 1
        return tuple(o.copy() if _is_array(xp, o) else o for o in capture.outputs)


def _is_array(xp: Any, value: Any) -> bool:
    return isinstance(value, xp.ndarray)


def _identity(value: Any) -> Any:
    """What stands for an argument that is not an array: its value where it has one, else itself."""
    return value if isinstance(value, int | float | bool | str | tuple | None) else id(value)


def _reference(variable: VariableResource) -> Reference:
    """The variable's array, without holding it."""
    value = variable.value
    return (lambda: None) if value is None else weakref.ref(value)


def _write_back(variable: VariableResource, array: Any) -> None:
    """Within a capture: what the function put in the variable's place goes into the array that was there.

    Raises:
        FailedPreconditionError: that array is gone, or there was none.
    """
    new = variable.value
    if array is None or new is None:
        raise FailedPreconditionError(
            f"variable {variable.name} did not keep its array", expected="a value that is updated in place"
        )
    if new is not array:
        array[...] = new
        variable.assign(array)


def _counts(pairs: Sequence[tuple[Any, Any]]) -> list[int]:
    """How many references there are to each second item."""
    return [sys.getrefcount(array) for _, array in pairs]


def _count_held() -> int:
    """The count of an array that a variable and a capture hold, and nobody else."""
    variable = VariableResource("", dtypes.float32, None)
    variable.assign(np.zeros(1, np.float32))
    return _counts(((variable, variable.value),))[0]


_HELD: Final = _count_held()


def _variables_in_place(capture: _Capture) -> bool:
    """Whether each variable is still in its array, and nobody else holds that: a launch writes over it, and what was
    read from a variable never changes.
    """
    if any(variable.value is not array for variable, array in capture.variables):
        return False
    return all(count <= _HELD for count in _counts(capture.variables))
