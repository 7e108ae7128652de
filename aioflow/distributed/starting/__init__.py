"""Clusters that a program starts and supervises: the part that is the same for all hosts of tasks."""
