"""Ops of variables and their updates."""
