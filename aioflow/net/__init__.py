"""Messages between processes: framing without I/O, comms by scheme, calls over a comm, and plans as messages.

What arrives from a peer is checked before anything is made of it, and is data only. A malformed message costs the
connection, never more.
"""
