"""The signatures of ops: inputs, outputs and attributes, and the notation for them."""
