"""Ops of arithmetic of elements, reductions, order and random numbers."""
