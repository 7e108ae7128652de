"""Stage 4, placement: feasible devices (constraints), costs, and the best choice (simulation)."""
