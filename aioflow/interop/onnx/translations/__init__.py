"""Translations from ONNX, one module per family, all imported by `translating.load_translations`."""
