"""The kernel of delegated parts by onnxruntime. Until its session is ready, and where it refuses the model, the part's
own nodes are run. Nothing of onnxruntime is loaded before a part is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aioflow.compiler.ir import BODY
from aioflow.kernels.delegated import body_of
from aioflow.kernels.registry import HOST, KERNELS, Binding, Body, binder
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


@binder(DELEGATED, device=HOST, fresh=True, takes_step=True, priority=_PRIORITY)
def delegated(binding: Binding) -> Body:
    engine, _, provider = binding.attrs["delegate"].partition(":")
    if engine != NAME or binding.reproducible:
        return KERNELS.get(DELEGATED, HOST, binding.attrs, below=_PRIORITY).bind(binding)
    return Delegated(binding, provider)


class Delegated:
    """One part: a callable that takes the values of its inputs and returns those of its outputs.

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
        self._body = body_of(binding)
        self._begun = threading.Lock()  # taken by who begins to make it, and never given back
        self.part: Part | None = None

    def __call__(self, inputs: Sequence[Any], step: Any = None) -> tuple[Any, ...]:
        """Run it once."""
        part = self.part
        if part is not None:
            return part.run(inputs)
        if self._begun.acquire(blocking=False):
            PREPARATIONS.begin(partial(self._make, thread_count()))
        return tuple(self._body.call(inputs, step))

    def _make(self, threads: int) -> None:
        try:
            with not_forked():
                from aioflow_onnxruntime.sessions import made
            self.part = made(self.graph, self._provider, threads)
        except Exception as error:  # whatever speaks against the model, the part's own nodes give the results
            _LOGGER.warning("the part of the step that ends with %r is not delegated: %s", self._node, error)
