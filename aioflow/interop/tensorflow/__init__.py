"""TensorFlow's graphs, SavedModels and checkpoints in and out, without TensorFlow."""
