"""onnxruntime's sessions for parts of steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnxruntime

from aioflow.compiler.ir import ClientGraph
from aioflow.errors import InvalidArgumentError, OpError, ResourceExhaustedError
from aioflow.graph.arrays import Array
from aioflow.interop.onnx.exporting.regions import model_of
from aioflow.work.copying import native
from aioflow.work.stopping import claim, current_work
from aioflow_onnxruntime.engine import OPSET, provider_of

__all__ = ["Part", "made"]

_SILENT: Final = 4  # the level of what is logged: what onnxruntime has to say comes as an exception, too
_FAILED_NODE: Final = re.compile(r"Name:'([^']*)'")
_NO_MEMORY: Final = re.compile("bad_alloc|allocate memory|Failed to allocate")


class Part:
    """A part of a step that is ready to run.

    Args:
        graph: The part.
        session: Of its model.

    Attributes:
        held: The constants whose memory the session uses.
    """

    def __init__(self, graph: ClientGraph, session: onnxruntime.InferenceSession, held: Mapping[str, Array]) -> None:
        self._graph = graph
        self._session = session
        self.held = held
        self._inputs = [each.name for each in session.get_inputs()]
        self._outputs = [each.name for each in session.get_outputs()]

    def run(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the outputs for these inputs, in new arrays.

        Raises:
            OpError: onnxruntime fails; with the node that it names, if that is one of the part.
            Stopped: the step was stopped.
        """
        feeds = {name: np.asarray(value) for name, value in zip(self._inputs, values, strict=True)}
        options = onnxruntime.RunOptions()
        options.log_severity_level = _SILENT
        work = current_work()
        if work is None:
            return self._run(feeds, options)

        def stop() -> None:
            options.terminate = True

        work.watchers.append(stop)
        try:
            work.check()  # it may have been stopped before there was a watcher
            return self._run(feeds, options)
        except OpError:
            work.check()
            raise
        finally:
            work.watchers.remove(stop)

    def _run(self, feeds: Mapping[str, Array], options: onnxruntime.RunOptions) -> tuple[Any, ...]:
        try:
            found: list[Any] = self._session.run(self._outputs, feeds, options)
        except Exception as error:  # the classes of its errors are no part of its interface
            raise self._failure(error) from error
        for value in found:
            claim(value.nbytes)
        return tuple(found)

    def _failure(self, error: Exception) -> OpError:
        text = str(error)
        kind = ResourceExhaustedError if _NO_MEMORY.search(text) else InvalidArgumentError
        made = kind(f"onnxruntime: {text}")
        named = _FAILED_NODE.search(text)
        node = None if named is None else self._graph.nodes.get(named[1])
        return made if node is None else made.at(node.name, node.op, node.source)


def made(graph: ClientGraph, provider: str, threads: int) -> Part:
    """Return the session of a part. Takes as long as onnxruntime takes to optimize the model.

    Args:
        provider: As of `engine.Engine`.
        threads: With which one run computes.

    Raises:
        UnsupportedError: the part has no translation.
        Exception: what onnxruntime has against the model.
    """
    model, constants = model_of(graph, OPSET)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    held = {name: np.ascontiguousarray(native(array)).reshape(array.shape) for name, array in constants.items()}
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in held.values()]
    if values:
        options.add_external_initializers(list(held), values)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=[provider_of(provider)], enable_fallback=0
    )
    return Part(graph, session, held)
