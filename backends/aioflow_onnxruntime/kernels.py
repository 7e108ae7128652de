"""The kernel of delegated parts by onnxruntime. Until its session is ready, and where it refuses the model, the part's
own nodes are run. Nothing of onnxruntime is loaded before a part is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aioflow.compiler.delegate import stays
from aioflow.compiler.ir import BODY
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
_WORTH_THREADS: Final = 200e-6  # seconds: a part that takes less is computed in one thread, since each has its own pool


@binder(DELEGATED, device=HOST, fresh=True, takes_step=True, priority=_PRIORITY)
def delegated(binding: Binding) -> Body:
    engine, _, provider = binding.attrs["delegate"].partition(":")
    graph = binding.attrs[BODY]
    if engine != NAME or binding.reproducible or stays(graph):  # a client may have cut it in another way
        return KERNELS.get(DELEGATED, HOST, binding.attrs, below=_PRIORITY).bind(binding)
    return Delegated(binding, provider)


class Delegated:
    """One part: a callable that takes the values of its inputs and returns those of its outputs. Its own nodes are run
    until onnxruntime's session is ready, and for inputs of shapes that it does not admit (`sessions.Part.admits`).

    Args:
        binding: Of the node that stands for it.
        provider: As of `engine.Engine`.

    Attributes:
        graph: The part, as the compiler has cut it.
        part: What onnxruntime computes; None as long as it is not ready, and where onnxruntime refuses the model.
    """

    def __init__(self, binding: Binding, provider: str) -> None:
        self._node = binding.name
        self.graph = binding.attrs[BODY]
        self._provider = provider
        self._is_small = binding.attrs["seconds"] < _WORTH_THREADS
        self._begun = threading.Lock()  # taken by who begins to make it, and kept
        self._body: BodySteps | None = body_of(binding)
        self.part: Part | None = None

    def __call__(self, inputs: Sequence[Any], step: Any = None) -> tuple[Any, ...]:
        """Run it once."""
        body, part = self._body, self.part  # looked at once, in this order: the body goes when the part is there
        if part is not None:
            if part.admits(inputs):
                return part.run(inputs)
        elif self._begun.acquire(blocking=False):
            threads = 1 if self._is_small else thread_count()
            if not PREPARATIONS.begin(partial(self._make, threads)):
                self._begun.release()  # a later run tries again
        if body is None:
            raise InternalError("a part has neither its nodes nor a model")
        return tuple(body.call(inputs, step))

    def _make(self, threads: int) -> None:
        try:
            with not_forked():
                from aioflow_onnxruntime.sessions import made
            self.part = part = made(self.graph, self._provider, threads)
            if part.admits_all:
                self._body = None  # with the copies of constants that its kernels keep
        except Exception as error:  # whatever speaks against the model, the part's own nodes give the results
            _LOGGER.warning("the part of the step that ends with %r is not delegated: %s", self._node, error)
