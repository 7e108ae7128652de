"""Formats of graph definitions: TensorFlow's messages, with ops of older versions, and aioflow's own encoding."""
