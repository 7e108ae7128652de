"""Chains of elementwise ops, depthwise convolutions, and threads that wait awake, as machine code, by the C compiler of
the machine.

`pieces` writes the members of a chain in C, `depthwise` has a convolution in C, and `crew` how threads wait. `compiler`
finds a compiler and runs it, `store` keeps what it has made on disk, `code` makes functions of it all, `trials` has
what these are tried on, and `background` is the thread in which that happens: NumPy computes until the code is there.
`python -m aioflow doctor` says which compiler is used, or why none is.
"""
