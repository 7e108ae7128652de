"""Translations of ops into ONNX, a family a file."""
