"""Graphs of ours as ONNX models: the request, the walk, and a translation per op."""
