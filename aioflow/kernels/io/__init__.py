"""Kernels of files, records and checkpoints."""
