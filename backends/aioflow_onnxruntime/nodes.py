"""The kernel of nodes of ONNX models that no op of ours computes (`interop/onnx/engine_nodes.py`): each is a model of
its own. Nothing of onnxruntime is loaded before there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.registry import HOST, Binding, binder
from aioflow.ops.onnx_node import ONNX_NODE
from aioflow.work.forking import not_forked
from aioflow_numpy.threads import thread_count
from aioflow_onnxruntime import require

__all__: list[str] = []


@binder(ONNX_NODE, device=HOST, fresh=True)
def onnx_node(binding: Binding) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Make the node's session, which takes a millisecond, or what its weights take.

    Raises:
        NotFoundError: onnxruntime is not installed; with the command that does so.
        InvalidArgumentError: it refuses the node, or gives other dtypes than the node has.
    """
    require()
    with not_forked():
        from aioflow.interop.onnx.engine_nodes import model_of_node
        from aioflow_onnxruntime.sessions import Model, kinds_of, model_session

    session = model_session(model_of_node(bytes(binding.attrs["model"])).SerializeToString(), thread_count())
    dtypes = [dtype for dtype, _ in kinds_of(session)]
    if len(session.get_inputs()) != len(binding.input_dtypes) or dtypes != list(binding.output_dtypes):
        raise InvalidArgumentError(
            "the model of the node does not fit it",
            expected=f"{len(binding.input_dtypes)} inputs, and outputs {list(binding.output_dtypes)}",
            actual=f"{len(session.get_inputs())} inputs, and outputs {dtypes}",
        )
    return Model(session).run
