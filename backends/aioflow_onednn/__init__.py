"""Kernels of the CPU device by oneDNN, through its C API: products, convolutions and other layers of float32.

`kernels` and `layer_kernels` register them, with a higher priority than NumPy's; the entry point group
`aioflow.kernels` finds it. Nothing happens where the library is absent or does not fit.
"""
