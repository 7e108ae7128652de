"""Ops of files, records and checkpoints."""
