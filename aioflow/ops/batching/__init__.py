"""Ops that batch the inputs of concurrent steps."""
