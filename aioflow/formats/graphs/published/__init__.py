"""Graph definitions in the form that TensorFlow publishes: protocol buffer messages, as bytes and as text."""
