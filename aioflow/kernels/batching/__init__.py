"""Kernels that make batches of what concurrent steps bring."""
