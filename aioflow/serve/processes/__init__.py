"""A service of several processes: one port, one supervisor, and the same models in each process.

`supervisor` starts, restarts and replaces the processes, each of which it holds as a `child`; `serving` is what a
process runs. They talk over a `channel`, and see each other's heartbeats on the `board`.
"""
