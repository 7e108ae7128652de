"""Kernels of elementwise arithmetic, reductions, sorting and random numbers."""
