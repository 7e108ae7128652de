"""Kernels of graph functions and Python functions."""
