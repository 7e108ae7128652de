"""Threads, cancellation, fork safety and context stacks."""
