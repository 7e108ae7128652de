"""A service of several processes: one port, one supervisor, and the same models in each, whose weights are in memory
once.

`supervisor` starts them, begins them again when they end, and replaces them one by one; `member` is what each of them
does; `board` and `line` are how they know of one another; `accepting` and `moving` are about connections.
"""
