"""Ops of sparse tensors."""
