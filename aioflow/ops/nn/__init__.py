"""Neural network ops."""
