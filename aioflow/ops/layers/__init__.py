"""Layers: objects that make variables on their first call and share them among further calls."""
