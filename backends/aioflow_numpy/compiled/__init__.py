"""Machine code, made by the machine's C compiler, for elementwise nodes, depthwise convolutions and spinning threads.

`pieces` writes the members of a chain in C; `depthwise`, `patches`, `pools`, `small` and `updates` have other programs,
and `crew` the wait loop of the threads. `code` finds a compiler, keeps its output on disk, and makes functions of it.
`wanted` decides when to compile, in the background: NumPy computes until the code is ready. `python -m aioflow doctor`
reports the compiler, or the reason why there is no compiler.
"""
