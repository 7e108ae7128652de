"""Import and export of TensorFlow's graphs, SavedModels and checkpoints, without TensorFlow."""

from aioflow.interop.tensorflow.graphs import export_graph_def as export_graph_def
from aioflow.interop.tensorflow.graphs import import_graph_def as import_graph_def
from aioflow.interop.tensorflow.graphs import load_graph as load_graph
from aioflow.interop.tensorflow.saved_model import load_saved_model as load_saved_model
from aioflow.interop.tensorflow.saved_model_writing import save_saved_model as save_saved_model

__all__ = ["export_graph_def", "import_graph_def", "load_graph", "load_saved_model", "save_saved_model"]
