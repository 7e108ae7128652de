"""Kernels of tensors as arrays: made, cut, joined, reordered."""
