"""The kernel of delegated parts by onnxruntime. Until its session is ready, and where it refuses the model, the part's
own nodes are run. Nothing of onnxruntime is loaded before a part is.
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
from aioflow.errors import InternalError
from aioflow.kernels.delegated import body_of
from aioflow.kernels.registry import HOST, KERNELS, Binding, Body, BodySteps, binder
from aioflow.ops.delegated import DELEGATED
from aioflow.runtime.delegates import PREPARATIONS
from aioflow.work.forking import not_forked
from aioflow_numpy.threads import thread_count
from aioflow_onnxruntime import NAME

if TYPE_CHECKING:
    from aioflow_onnxruntime.sessions import Part

__all__ = ["Delegated"]

_LOGGER: Final = logging.getLogger("aioflow.delegate")
_PRIORITY: Final = 1
_STILL: Final = 16  # runs in which variables must not change, when they have changed once
_STILLEST: Final = 1 << 16  # the same, however often they have changed
_WORTH_THREADS: Final = 200e-6  # seconds: a part that takes less is computed in one thread, since each has its own pool


@binder(DELEGATED, device=HOST, fresh=True, takes_step=True, priority=_PRIORITY)
def delegated(binding: Binding) -> Body:
    engine, _, provider = binding.attrs["delegate"].partition(":")
    is_ours = engine == NAME and not binding.reproducible and binding.body is not None
    if not is_ours or stays(binding.attrs[BODY]):  # a client may have cut it in another way
        return KERNELS.get(DELEGATED, HOST, binding.attrs, below=_PRIORITY).bind(binding)
    return Delegated(binding, provider)


class Delegated:
    """One part: a callable that takes the values of its inputs and returns those of its outputs. Its own nodes are run
    until onnxruntime's session is ready, and for inputs of shapes that it does not admit (`sessions.Part.admits`).

    Variables that the step does not change are constants of the model: onnxruntime lays constants out and folds them
    ahead. Their arrays are held meanwhile, so that who changes a variable makes a new array of it. When a run of any
    part finds one, the model is dropped, and another one serves that reads all variables, until they have not changed
    for a while.

    Args:
        binding: Of the node that stands for it.
        provider: As of `engine.Engine`.

    Attributes:
        graph: The part, as the compiler has cut it.
        names: Of the variables among its inputs, each with its index.
        part: What onnxruntime computes for any values of variables; None as long as that is not ready, and where
            onnxruntime refuses the model.
        fixed: What it computes for the values that variables have now, or None.
    """

    def __init__(self, binding: Binding, provider: str) -> None:
        self._node = binding.name
        self.graph = binding.attrs[BODY]
        self._provider = provider
        self._is_small = binding.attrs["seconds"] < _WORTH_THREADS
        self._body: BodySteps | None = body_of(binding)
        self.part: Part | None = None
        self.fixed: _Fixed | None = None
        self._begun = threading.Lock()  # taken by the run that begins to make `part`, and kept
        self._fixing = threading.Lock()  # held while `fixed` is made; kept where there is nothing to fix
        given = range(len(binding.input_dims))
        self._variables = _Variables([index for index in binding.attrs.get("still", ()) if index in given])
        names = zip(binding.attrs.get("variables", ()), given, strict=False)  # a client may have sent fewer, or more
        self.names = {name: index for name, index in names if name}
        self._models = _MODELS.setdefault(binding.resources, _FixedModels())
        if not self._variables:
            self._fixing.acquire()

    def __call__(self, inputs: Sequence[Any], step: Any = None) -> tuple[Any, ...]:
        """Run it once."""
        body, part = self._body, self._ready(inputs)  # looked at in this order: the body goes when the part is there
        if part is not None and part.admits(inputs):
            return part.run(inputs)
        if body is None:
            raise InternalError("a part has neither its nodes nor a model")
        return tuple(body.call(inputs, step))

    def _ready(self, inputs: Sequence[Any]) -> Part | None:
        """Return what computes these inputs; None as long as the nodes do. Begins what is to be made for later runs."""
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
                self._body = None  # with the copies of constants that its kernels keep
        except Exception as error:  # whatever speaks against the model, the part's own nodes give the results
            _LOGGER.warning("the part of the step that ends with %r is not delegated: %s", self._node, error)

    def _fix(self, values: Mapping[int, Any]) -> None:
        try:
            self.fixed = _Fixed(values, self._made(with_constants(self.graph, values)))
            self._models.add(self)
            self._fixing.release()
        except Exception as error:  # then onnxruntime may take the values as inputs
            self._variables = _Variables(())
            _LOGGER.debug("the part that ends with %r has no model with its variables' values: %s", self._node, error)

    def _made(self, graph: ClientGraph) -> Part:
        with not_forked():
            from aioflow_onnxruntime.sessions import made
        return made(graph, self._provider, 1 if self._is_small else thread_count())


class _FixedModels:
    """The parts of a device that have models with values of variables in them, by the names of the variables. A model
    with an old value goes when any part reads a new one: its own part may not be run again.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._parts: dict[str, weakref.WeakSet[Delegated]] = {}

    def add(self, part: Delegated) -> None:
        with self._changing:
            for name in part.names:
                self._parts.setdefault(name, weakref.WeakSet()).add(part)

    def drop_others(self, names: Mapping[str, int], inputs: Sequence[Any]) -> None:
        """Drop the models in which one of the variables among these inputs has another value.

        Args:
            names: Of the variables, each with the index of its input.
        """
        if not self._parts:
            return
        with self._changing:
            for name, index in names.items():
                for part in list(self._parts.get(name, ())):
                    fixed = part.fixed
                    if fixed is None:
                        self._parts[name].discard(part)
                    elif fixed.values.get(part.names[name], inputs[index]) is not inputs[index]:
                        part.fixed = None


_MODELS: Final[weakref.WeakKeyDictionary[Any, _FixedModels]] = weakref.WeakKeyDictionary()  # by the resource manager


class _Fixed(NamedTuple):
    """A model that has the values of variables in it.

    Attributes:
        values: By the index of the input.
    """

    values: Mapping[int, Any]
    part: Part

    def are_in(self, inputs: Sequence[Any]) -> bool:
        """Return whether the inputs have these values. To have an array is enough: who changes it makes a new one."""
        return all(inputs[index] is value for index, value in self.values.items())


class _Variables:
    """The arrays of variables, watched from run to run. They are not held: a change may be made in place.

    Args:
        indices: Of the inputs that have them.
    """

    def __init__(self, indices: Sequence[int]) -> None:
        self.indices = tuple(indices)
        self._seen: list[Callable[[], Any]] = []
        self._runs = 0  # in which they were the same
        self._needed = 0

    def __bool__(self) -> bool:
        return bool(self.indices)

    def are_still(self, inputs: Sequence[Any]) -> bool:
        """Return whether they have not changed for as many runs as they must not. That is so in the first run."""
        seen = self._seen
        if seen and all(seen[n]() is inputs[index] for n, index in enumerate(self.indices)):
            self._runs += 1
        else:
            if seen:
                self._runs, self._needed = 0, min(max(_STILL, 4 * self._needed), _STILLEST)
            self._seen = [_reference(inputs[index]) for index in self.indices]
        return self._runs >= self._needed


def _reference(value: Any) -> Callable[[], Any]:
    """Return what gives a value as long as it is held elsewhere."""
    return weakref.ref(value) if isinstance(value, np.ndarray) else lambda: value  # a scalar of NumPy never changes
