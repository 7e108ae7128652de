"""TensorFlow's graphs, SavedModels and checkpoints in and out, without TensorFlow."""

from aioflow.interop.tensorflow.saved_model import load_saved_model as load_saved_model
from aioflow.interop.tensorflow.saved_model_writing import save_saved_model as save_saved_model

__all__ = ["load_saved_model", "save_saved_model"]
