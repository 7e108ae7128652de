"""Ops of branches, loops and critical sections."""
