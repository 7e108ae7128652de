"""Ops of variables and what updates them."""
