"""Graphs in files: the public namespace `aioflow.io`, after `tf.io` of the TensorFlow 1 API."""

from aioflow.train.graph_io import read_graph, write_graph

__all__ = ["read_graph", "write_graph"]
