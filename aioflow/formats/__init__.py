"""File formats: reading and writing of files and bytes, independent of the ops that use them."""
