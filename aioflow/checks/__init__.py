"""Checks and display of users' values: numbers, abbreviated values, and the documents that messages name."""
