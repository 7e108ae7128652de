"""What an op takes and gives: its arguments and attributes, and the notation that they are written in."""
