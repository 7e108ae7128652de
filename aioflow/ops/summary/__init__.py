"""Summaries of tensors, as messages that event files store."""
