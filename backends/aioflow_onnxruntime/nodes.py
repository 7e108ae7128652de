"""The kernel of nodes of ONNX models that no aioflow op computes (`interop/onnx/engine_nodes.py`).

Each node is a model of its own. onnxruntime is loaded with the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aioflow.concurrency.forking import not_forked
from aioflow.errors import InvalidArgumentError
from aioflow.kernels.registry import HOST, Binding, binder
from aioflow.memory.values import Array
from aioflow.ops.delegated import ONNX_NODE
from aioflow_numpy.threads import thread_count
from aioflow_onnxruntime import require


@binder(ONNX_NODE, device=HOST, fresh=True)
def onnx_node(binding: Binding) -> Callable[[Sequence[Array]], tuple[Array, ...]]:
    """Bind a node and make its session, which takes a millisecond plus the time for its weights.

    Raises:
        NotFoundError: onnxruntime is not installed; the error has the install command.
        InvalidArgumentError: onnxruntime rejects the node, or returns other dtypes than the node has.
    """
    require()
    with not_forked():
        from aioflow.interop.onnx.engine_nodes import model_of_node
        from aioflow_onnxruntime.sessions import LoadedModel, kinds_of, model_session

    session = model_session(model_of_node(bytes(binding.attrs["model"])).SerializeToString(), thread_count())
    dtypes = [dtype for dtype, _ in kinds_of(session)]
    if len(session.get_inputs()) != len(binding.input_dtypes) or dtypes != list(binding.output_dtypes):
        raise InvalidArgumentError(
            "the model of the node does not fit it",
            expected=f"{len(binding.input_dtypes)} inputs, and outputs {list(binding.output_dtypes)}",
            actual=f"{len(session.get_inputs())} inputs, and outputs {dtypes}",
        )
    return LoadedModel(session).run
