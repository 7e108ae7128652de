"""What aioflow answers to names of TensorFlow's that it does not have."""
