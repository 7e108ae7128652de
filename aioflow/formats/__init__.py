"""Files on disk and bytes: how they are read and written, apart from the ops that do it."""
