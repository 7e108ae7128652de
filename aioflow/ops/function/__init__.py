"""Ops of functions of a graph and of Python."""
