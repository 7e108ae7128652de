"""Kernels that build summary messages."""
