"""Clusters that a program starts and supervises: what is the same for all places where tasks can run."""
