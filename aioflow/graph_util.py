"""`aioflow.graph_util`: rewriting of graph definitions, under TensorFlow 1's names."""

from aioflow.interop.rewriting import convert_variables_to_constants as convert_variables_to_constants
from aioflow.interop.rewriting import extract_sub_graph as extract_sub_graph
from aioflow.interop.rewriting import must_run_on_cpu as must_run_on_cpu
from aioflow.interop.rewriting import remove_training_nodes as remove_training_nodes
from aioflow.interop.rewriting import tensor_shape_from_node_def_name as tensor_shape_from_node_def_name
from aioflow.loading.later import load_later as _load_later
from aioflow.ops.importer import import_graph_def as import_graph_def

__all__ = [
    "convert_variables_to_constants",
    "extract_sub_graph",
    "import_graph_def",
    "must_run_on_cpu",
    "remove_training_nodes",
    "tensor_shape_from_node_def_name",
]

_load_later(__name__)
