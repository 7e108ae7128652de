"""The CuPy backend: the GPU device type.

The imports of the package and of `aioflow_cupy.backend` need neither CuPy nor a driver; a `CupyBackend` loads both.
"""
