"""The status of a server: document, text, and HTTP page."""
