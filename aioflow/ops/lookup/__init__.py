"""Ops of lookup tables."""
