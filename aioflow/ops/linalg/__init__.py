"""Ops of matrices."""
