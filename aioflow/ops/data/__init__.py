"""Ops of input pipelines: datasets and iterators."""
