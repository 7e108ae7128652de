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

__all__ = ["Part", "made", "options_for"]

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
        name = "" if named is None else named[1]
        while (
            name and name not in self._graph.nodes
        ):  # several nodes that come of one have its name and one of their own
            name = name.rpartition("/")[0]
        node = self._graph.nodes.get(name)
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
    held = {name: np.ascontiguousarray(native(array)).reshape(array.shape) for name, array in constants.items()}
    text, provider = model.SerializeToString(), provider_of(provider)
    try:
        session = _session(text, held, provider, options_for(threads))
    except Exception:  # an optimization of onnxruntime fails on some models that it runs without
        plain = options_for(threads)
        plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = _session(text, held, provider, plain)
    return Part(graph, session, held)


def options_for(threads: int) -> onnxruntime.SessionOptions:
    """Return how a session is made whose runs compute with so many threads."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _session(
    model: bytes, held: Mapping[str, Array], provider: str, options: onnxruntime.SessionOptions
) -> onnxruntime.InferenceSession:
    if held:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in held.values()]
        options.add_external_initializers(list(held), values)
    return onnxruntime.InferenceSession(model, options, providers=[provider], enable_fallback=0)
