"""Error messages for TensorFlow's names that aioflow does not have."""
