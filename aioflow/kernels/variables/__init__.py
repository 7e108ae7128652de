"""Kernels of variables and of their updates."""
