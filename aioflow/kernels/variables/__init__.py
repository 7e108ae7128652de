"""Kernels of variables and what updates them."""
