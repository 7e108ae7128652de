"""A service of several processes: one port, one supervisor, and the same models in each process.

`supervisor` starts, restarts and replaces the processes, each represented by a `child`. `serving` is the body of a
process. They communicate over a `channel`, and share heartbeats on the `board`.
"""
