"""Communication between processes: framing without I/O, comms by scheme, calls over a comm, and plans as messages.

Everything that arrives from a peer is plain data and is checked before use. A malformed message closes its connection
and has no other effect.
"""
