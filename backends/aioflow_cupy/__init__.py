"""The CuPy backend: the GPU device type.

Importing the package, and `aioflow_cupy.backend` in it, needs neither CuPy nor a driver: both are asked for when a
`CupyBackend` is made.
"""
