"""Kernels of linear algebra."""
