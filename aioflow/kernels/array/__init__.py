"""Kernels that create, slice, join and reorder arrays."""
