"""Ops, one file a family: for each op its definition, shape function, gradient and public builder, side by side."""
