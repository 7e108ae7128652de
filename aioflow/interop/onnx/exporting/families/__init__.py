"""Translations of ops to ONNX, one file per family."""
