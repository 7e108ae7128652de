"""Graph definitions in the form that TensorFlow publishes: messages of protocol buffers, as bytes and as text."""
