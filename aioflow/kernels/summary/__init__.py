"""Kernels that make the messages of summaries."""
