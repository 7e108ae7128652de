"""Lazy imports, entry points of distributions, and hooks that run before NumPy is imported."""
