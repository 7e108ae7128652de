"""Kernels: what ops do when a step runs. One body over an array namespace `xp` serves every backend that can run it."""
