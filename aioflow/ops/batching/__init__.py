"""Ops that make batches of what concurrent steps bring."""
