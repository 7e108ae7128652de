"""Ops of strings."""
