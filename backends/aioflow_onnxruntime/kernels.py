"""The kernel of delegated parts by onnxruntime.

The part's own nodes run until the session is ready, and if onnxruntime rejects the model. onnxruntime is loaded with
the first part.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from aioflow.compiler.delegate import stays, with_constants
from aioflow.compiler.ir import BODY, ClientGraph
from aioflow.concurrency.forking import not_forked
from aioflow.errors import InternalError
from aioflow.kernels.delegated import body_of
from aioflow.kernels.registry import HOST, KERNELS, Binding, BodySteps, KernelBody, binder
from aioflow.memory.values import Array, Value
from aioflow.ops.delegated import DELEGATED
from aioflow.runtime.delegates import PREPARATIONS
from aioflow_numpy.threads import thread_count
from aioflow_onnxruntime import NAME

if TYPE_CHECKING:
    from aioflow_onnxruntime.sessions import EnginePart

_LOGGER: Final = logging.getLogger("aioflow.delegate")
_PRIORITY: Final = 1
_STILL: Final = 16  # runs without a change that are required after a first change
_STILLEST: Final = 1 << 16  # maximum of the same after repeated changes
_WORTH_THREADS: Final = 200e-6  # seconds: a shorter part runs in one thread, since each part has its own thread pool


@binder(DELEGATED, device=HOST, fresh=True, takes_step=True, priority=_PRIORITY)
def delegated(binding: Binding) -> KernelBody:
    engine, _, provider = binding.attrs["delegate"].partition(":")
    is_ours = engine == NAME and not binding.reproducible and binding.body is not None
    if not is_ours or stays(binding.attrs[BODY]):  # a client may have partitioned the step differently
        return KERNELS.get(DELEGATED, HOST, binding.attrs, below=_PRIORITY).bind(binding)
    return Delegated(binding, provider)


class Delegated:
    """A part of a step: a callable from the values of its inputs to those of its outputs.

    The part's own nodes run until onnxruntime's session is ready, and for inputs whose shapes the session does not
    support (`sessions.EnginePart.admits`).

    Variables that the step does not change are constants of the model: onnxruntime packs and folds constants in
    advance. The model holds their arrays, so that a change of a variable makes a new array. When a run of any part
    finds a changed variable, the model is dropped. Another model, which reads all variables, is used until they have
    not changed for a while.

    Args:
        binding: The node of the part.
        provider: As for `engine.Engine`.

    Attributes:
        graph: The part as partitioned by the compiler.
        names: Names of the variables among the inputs, each with its index.
        part: The session for any values of variables; None while it is not ready, and if onnxruntime rejects the
            model.
        fixed: The session for the current values of variables, or None.
    """

    def __init__(self, binding: Binding, provider: str) -> None:
        self._node = binding.name
        self.graph = binding.attrs[BODY]
        self._provider = provider
        self._is_small = binding.attrs["seconds"] < _WORTH_THREADS
        self._body: BodySteps | None = body_of(binding)
        self.part: EnginePart | None = None
        self.fixed: _Fixed | None = None
        self._begun = threading.Lock()  # acquired by the run that starts making `part`, and kept
        self._fixing = threading.Lock()  # held while `fixed` is made; kept if there are no variables
        given = range(len(binding.input_dims))
        self._variables = _Variables([index for index in binding.attrs.get("still", ()) if index in given])
        # Not strict: a client may have sent fewer or more names.
        names = zip(binding.attrs.get("variables", ()), given, strict=False)
        self.names = {name: index for name, index in names if name}
        self._models = _MODELS.setdefault(binding.resources, _FixedModels())
        if not self._variables:
            self._fixing.acquire()

    def __call__(self, inputs: Sequence[Array], step: object = None) -> tuple[Value, ...]:
        """Run the part once."""
        # The body must be read first: it is dropped when the part is ready.
        body, part = self._body, self._ready(inputs)
        if part is not None and part.admits(inputs):
            return part.run(inputs)
        if body is None:
            raise InternalError("a part has neither its nodes nor a model")
        return tuple(body.call(inputs, step))

    def _ready(self, inputs: Sequence[Array]) -> EnginePart | None:
        """Return the session for these inputs; None while the part's own nodes must run.

        This also starts preparations for later runs.
        """
        fixed = self.fixed
        if fixed is not None:
            if fixed.are_in(inputs):
                return fixed.part
            self.fixed = None
        self._models.drop_others(self.names, inputs)
        if self._variables and self._variables.are_still(inputs):
            if self._fixing.acquire(blocking=False):
                values = {index: inputs[index] for index in self._variables.indices}
                if not PREPARATIONS.begin(partial(self._fix, values)):
                    self._fixing.release()  # a later run tries again
        elif self.part is None and self._begun.acquire(blocking=False) and not PREPARATIONS.begin(self._make):
            self._begun.release()
        return self.part

    def _make(self) -> None:
        try:
            self.part = part = self._made(self.graph)
            if part.admits_all:
                self._body = None  # also frees the copies of constants in its kernels
        except Exception as error:  # on any failure, the part's own nodes compute the results
            _LOGGER.warning("the part of the step that ends with %r is not delegated: %s", self._node, error)

    def _fix(self, values: Mapping[int, Array]) -> None:
        try:
            self.fixed = _Fixed(values, self._made(with_constants(self.graph, values)))
            self._models.add(self)
            self._fixing.release()
        except Exception as error:  # onnxruntime may still accept the values as inputs
            self._variables = _Variables(())
            _LOGGER.debug("the part that ends with %r has no model with its variables' values: %s", self._node, error)

    def _made(self, graph: ClientGraph) -> EnginePart:
        with not_forked():
            from aioflow_onnxruntime.sessions import made
        return made(graph, self._provider, 1 if self._is_small else thread_count())


class _FixedModels:
    """The parts of a device whose models contain values of variables, by the names of the variables.

    A model with an old value is dropped when any part reads a new one, since its own part may never run again.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._parts: dict[str, weakref.WeakSet[Delegated]] = {}

    def add(self, part: Delegated) -> None:
        with self._changing:
            for name in part.names:
                self._parts.setdefault(name, weakref.WeakSet()).add(part)

    def drop_others(self, names: Mapping[str, int], inputs: Sequence[Array]) -> None:
        """Drop the models in which one of the variables among these inputs has another value.

        Args:
            names: Names of the variables, each with the index of its input.
            inputs: The inputs.
        """
        if not self._parts:
            return
        with self._changing:
            for name, index in names.items():
                for part in list(self._parts.get(name, ())):
                    fixed = part.fixed
                    if fixed is None:
                        self._parts[name].discard(part)
                    # A model without the variable's value has nothing to compare, so it stays.
                    elif fixed.values.get(part.names[name], inputs[index]) is not inputs[index]:
                        part.fixed = None


# Keyed by the resource manager.
_MODELS: Final[weakref.WeakKeyDictionary[Any, _FixedModels]] = weakref.WeakKeyDictionary()


class _Fixed(NamedTuple):
    """A model that contains values of variables.

    Attributes:
        values: The values by the index of the input.
        part: The session.
    """

    values: Mapping[int, Array]
    part: EnginePart

    def are_in(self, inputs: Sequence[Array]) -> bool:
        """Return True if the inputs have these values. Identity suffices: a change makes a new array."""
        return all(inputs[index] is value for index, value in self.values.items())


class _Variables:
    """The arrays of variables, compared from run to run.

    References are weak, since a variable whose array is not referenced elsewhere may be changed in place.

    Args:
        indices: Indices of the inputs that hold them.
    """

    def __init__(self, indices: Sequence[int]) -> None:
        self.indices = tuple(indices)
        self._seen: list[Callable[[], Value]] = []
        self._runs = 0  # without a change
        self._needed = 0

    def __bool__(self) -> bool:
        return bool(self.indices)

    def are_still(self, inputs: Sequence[Array]) -> bool:
        """Return True if the variables have been unchanged for the required number of runs, which is 0 at first."""
        seen = self._seen
        if seen and all(seen[n]() is inputs[index] for n, index in enumerate(self.indices)):
            self._runs += 1
        else:
            if seen:
                self._runs, self._needed = 0, min(max(_STILL, 4 * self._needed), _STILLEST)
            self._seen = [_reference(inputs[index]) for index in self.indices]
        return self._runs >= self._needed


def _reference(value: Value) -> Callable[[], Value]:
    """Return a function that returns a value as long as it is referenced elsewhere."""
    return weakref.ref(value) if isinstance(value, np.ndarray) else lambda: value  # NumPy's scalars are immutable
