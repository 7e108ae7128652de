"""Array ops: creation, slicing, joining and reordering of tensors."""
