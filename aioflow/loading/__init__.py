"""Lazy imports, errors of missing names, entry points of distributions, and hooks that run before NumPy is imported."""
