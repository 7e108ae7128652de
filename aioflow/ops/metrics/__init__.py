"""Metrics: sums over many steps, kept in local variables, and the values computed from them."""
