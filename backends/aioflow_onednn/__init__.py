"""Kernels of the CPU device by oneDNN, through its C API: products, convolutions and other layers of float32.

`kernels` and `layer_kernels` register them with a higher priority than NumPy's. The package is found by the entry
point group `aioflow.kernels`. It registers nothing where the library is missing or unsuitable.
"""
