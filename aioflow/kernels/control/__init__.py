"""Kernels of branches, loops and critical sections."""
