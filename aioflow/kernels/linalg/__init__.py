"""Kernels of matrices."""
