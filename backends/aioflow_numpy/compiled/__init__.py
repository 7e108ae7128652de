"""Machine code, made by the machine's C compiler, for elementwise chains, depthwise convolutions and spinning threads.

`pieces` writes the members of a chain in C; `depthwise`, `patches`, `pools` and `updates` have other programs, and
`crew` the wait loop of the threads. `compiler` finds a compiler and runs it, `store` keeps its output on disk, and
`code` makes functions of it. `trials` has the test data, and `background` the thread that compiles: NumPy computes
until the code is ready. `python -m aioflow doctor` reports the compiler, or the reason why there is no compiler.
"""
