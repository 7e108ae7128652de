"""CUDA graphs: a strand with recurring shapes is captured once, then launched as one, with a hundredth of the calls.

A graph contains the addresses of all its arrays:

- It reads its inputs from its own arrays, into which they are copied.
- It writes to memory of its own pool.
- Its results are copied out, since the next launch overwrites them.
- It reads and updates variables in the arrays in which the capture found them. If a variable has moved, or has another
  reader and would be overwritten, the call runs without the graph, and the strand is captured again.

A strand may be captured only if none of its kernels needs a value of the device on the host (`is_capturable`). If CUDA
refuses nevertheless, the strand runs without graphs from then on.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.errors import FailedPreconditionError
from aioflow.graph import dtypes
from aioflow.kernels.resources import VariableResource
from aioflow.memory.values import Array, Value
from aioflow.runtime.bind import BoundNode
from aioflow_cupy.driver import CudaDriver, CudaGraph, MemoryPool
from aioflow_cupy.streams import DeviceStreams

StrandFunction: TypeAlias = Callable[..., tuple[Any, ...]]
ShapeKey: TypeAlias = tuple[Hashable, ...]
ArrayReference: TypeAlias = Callable[[], Array | None]

# The runs before a capture compile the kernels and create the objects that kernels make on their first call.
_WARM_UP: Final = 2
_LONGEST_WAIT: Final = 10  # a new capture waits for at most 2**10 plain runs
_KEPT: Final = 4  # the most graphs of one strand, one for each combination of shapes


@dataclass(slots=True)
class CaptureStats:
    """Counts of the calls of one function by outcome.

    Attributes:
        plain: Calls without a graph.
        captured: Graphs made.
        replayed: Calls launched as a graph.
        refused: The reason why the function will not be captured any more, or None.
    """

    plain: int = 0
    captured: int = 0
    replayed: int = 0
    refused: str | None = None


@dataclass(slots=True)
class _Capture:
    graph: CudaGraph
    pool: MemoryPool
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    read: tuple[tuple[VariableResource, Array], ...]
    written: tuple[tuple[VariableResource, Array], ...]


@dataclass(slots=True)
class _Shape:
    """The state of the calls with arguments of certain shapes.

    Attributes:
        seen: Calls so far, less those that a new capture has to wait for.
        missed: Captures in a row that were used once only.
        capture: The graph, or None.
    """

    seen: int = 0
    missed: int = 0
    capture: _Capture | None = None


class CapturedFunction:
    """A function of arrays, run in the compute stream's thread.

    Args:
        driver: The driver.
        streams: The streams of the device.
        function: Takes arrays and other values, returns a tuple. It must do the same work for equal shapes.
        variables: All variables that it reads or updates.
    """

    def __init__(
        self,
        driver: CudaDriver,
        streams: DeviceStreams,
        function: StrandFunction,
        variables: Sequence[VariableResource] = (),
    ) -> None:
        self.stats = CaptureStats()
        self._driver = driver
        self._streams = streams
        self._function = function
        self._variables = tuple(variables)
        self._shapes: dict[ShapeKey, _Shape] = {}
        # For each variable whether the last run left it in its array.
        self._stays: list[bool] = [False] * len(self._variables)

    def __call__(self, *args: Value) -> tuple[Any, ...]:
        """Return the function's results for these arguments."""
        if self.stats.refused is not None:
            return self._plain(args)
        shape = self._shape(args)
        fresh = shape.capture is None
        if shape.capture is None:
            shape.seen += 1
            if shape.seen <= _WARM_UP:
                return self._plain(args)
            shape.capture = self._captured(args)
            if shape.capture is None:
                return self._plain(args)
        if not _variables_in_place(shape.capture):
            # One more plain run, then a new capture. If variables move all the time, the waits get longer: a capture
            # costs as much as many plain runs.
            shape.capture, shape.seen = None, _WARM_UP - 2**shape.missed
            shape.missed = min(shape.missed + 1, _LONGEST_WAIT)
            return self._plain(args)
        if not fresh:
            shape.missed = 0
        return self._replay(shape.capture, args)

    def forget(self) -> None:
        """Drop all graphs. The device must be done with them."""
        self._shapes.clear()

    def _plain(self, args: Sequence[Any]) -> tuple[Value, ...]:
        self.stats.plain += 1
        # Weak references, because an update works in place only if nothing else holds the array.
        before = [_reference(v) for v in self._variables]
        made = self._function(*args)
        self._stays = [b() is not None and b() is v.value for b, v in zip(before, self._variables, strict=True)]
        return made

    def _shape(self, args: Sequence[Any]) -> _Shape:
        key = tuple((a.shape, str(a.dtype)) if _is_array(self._driver.xp, a) else _identity(a) for a in args)
        if key not in self._shapes:
            # Dictionaries keep the order of insertion.
            if len(self._shapes) >= _KEPT:
                oldest = next(iter(self._shapes))
                del self._shapes[oldest]
            self._shapes[key] = _Shape()
        return self._shapes[key]

    def _captured(self, args: Sequence[Any]) -> _Capture | None:
        """Return the graph of the function for arguments like these, or None. The work has not run yet."""
        xp, stream = self._driver.xp, self._streams.capture
        inputs = tuple(a.copy() if _is_array(xp, a) else a for a in args)
        before = [_reference(v) for v in self._variables]
        writes = [v.writes for v in self._variables]
        # An update works in place only if there is no other reference to the array. The other arrays must outlive their
        # replacements.
        held = [None if stays else v.value for stays, v in zip(self._stays, self._variables, strict=True)]
        # The graph's own: memory of the common pool would be given to other arrays, which the graph would overwrite.
        pool = self._driver.private_pool()
        with self._streams.recording(pool.malloc):
            # From here on the work is recorded and does not run.
            stream.begin_capture()
            self._streams.capturing = True
            try:
                outputs = self._function(*inputs)
                changed = [v.writes != count for v, count in zip(self._variables, writes, strict=True)]
                for variable, reference in zip(self._variables, before, strict=True):
                    _write_back(variable, reference())
            except Exception as error:
                self._abandon(error, before)
                return None
            finally:
                self._streams.capturing = False
            try:
                graph = stream.end_capture()
            except Exception as error:
                self._refuse(error, before)
                return None
        self.stats.captured += 1
        del held
        pairs = [(v, v.value) for v in self._variables]
        return _Capture(
            graph,
            pool,
            inputs,
            outputs,
            read=tuple(pair for pair, written in zip(pairs, changed, strict=True) if not written),
            written=tuple(pair for pair, written in zip(pairs, changed, strict=True) if written),
        )

    def _abandon(self, error: Exception, before: Sequence[ArrayReference]) -> None:
        try:
            self._streams.capture.end_capture()
        except Exception as ended:  # CUDA repeats its refusal
            error.add_note(f"and at its end: {ended}")
        self._refuse(error, before)

    def _refuse(self, error: Exception, before: Sequence[ArrayReference]) -> None:
        self.stats.refused = f"{type(error).__name__}: {error}"
        for variable, reference in zip(self._variables, before, strict=True):
            array = reference()
            if array is not None and variable.value is not array:  # the recorded work never ran
                variable.assign(array)

    def _replay(self, capture: _Capture, args: Sequence[Any]) -> tuple[Value, ...]:
        xp = self._driver.xp
        for own, given in zip(capture.inputs, args, strict=True):
            if _is_array(xp, own):
                own[...] = given
        # In the same stream as the copies before and after it, and so in order with them.
        capture.graph.launch(self._streams.compute)
        self.stats.replayed += 1
        return tuple(o.copy() if _is_array(xp, o) else o for o in capture.outputs)


def _is_array(xp: Any, value: Value) -> bool:
    return isinstance(value, xp.ndarray)


def _identity(value: Value) -> Hashable:
    """Return the cache key of an argument that is not an array: its value if it is a plain one, otherwise its id."""
    # An id cannot be reused while a graph exists: a capture holds its arguments.
    # Equal values are the same to a graph, which has them as constants.
    return value if isinstance(value, int | float | bool | str | tuple | None) else id(value)


def _reference(variable: VariableResource) -> ArrayReference:
    """Return a weak reference to the variable's array."""
    value = variable.value
    return (lambda: None) if value is None else weakref.ref(value)


def _write_back(variable: VariableResource, array: Array | None) -> None:
    """During a capture, copy the variable's new value into the array that the variable had before.

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


def _counts(pairs: Sequence[tuple[VariableResource, Array]]) -> list[int]:
    """Return the number of references to the array of each pair."""
    # One function for both callers: the counts include the temporary references made here.
    return [sys.getrefcount(array) for _, array in pairs]


def _count_held() -> int:
    """Return the reference count of an array that only a variable and a capture hold."""
    variable = VariableResource("", dtypes.float32, None)
    variable.assign(np.zeros(1, np.float32))
    return _counts(((variable, variable.value),))[0]


_HELD: Final = _count_held()


def _variables_in_place(capture: _Capture) -> bool:
    """Return whether each variable is still in its array, and each that a launch overwrites has no other reader.

    A value read from a variable must never change.
    """
    if any(variable.value is not array for variable, array in (*capture.read, *capture.written)):
        return False
    # A higher count means that a step, or the user, still holds what was read from the variable, or that the constant
    # which initialized it shares the array.
    return all(count <= _HELD for count in _counts(capture.written))


def is_capturable(nodes: Sequence[BoundNode]) -> bool:
    """Return whether a CUDA graph can replace the bound nodes of a strand: none needs device values on the host.

    CUDA would refuse other nodes itself, but only after the attempt.
    """
    on_host = {b.node.name for b in nodes if b.kernel.host_results}
    inside = {b.node.name for b in nodes}
    for bound in nodes:
        # Gathers with `batch_dims` run the portable kernel, which looks at the indices.
        if bound.kernel.is_async or bound.kernel.synchronises or bound.node.attrs.get("batch_dims"):
            return False
        for argument in bound.arguments:
            # A converted argument is read on the host. A value from inside the strand must then be made on the host,
            # too.
            if argument.convert is not None and any(
                edge.node in inside and edge.node not in on_host for edge in argument.sources
            ):
                return False
    return True
