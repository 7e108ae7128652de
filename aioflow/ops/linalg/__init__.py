"""Linear algebra ops."""
