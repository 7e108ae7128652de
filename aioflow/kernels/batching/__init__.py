"""Kernels that form batches from concurrent steps."""
