"""Stage 4: give every node a device: what is allowed (constraints), what it costs, and which is best (simulation)."""
