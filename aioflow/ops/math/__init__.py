"""Elementwise arithmetic, reductions, sorting and random ops."""
