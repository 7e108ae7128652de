"""Export of aioflow graphs to ONNX models: the request, the walk, and a translation per op."""
