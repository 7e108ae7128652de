"""Copies, shared and mapped memory, and the release of memory."""
