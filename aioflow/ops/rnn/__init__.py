"""Recurrent nets: cells, and loops over the steps of sequences."""
