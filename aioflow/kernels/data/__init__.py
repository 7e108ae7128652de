"""Kernels of input pipelines: the stages of datasets, and the iterators that pull elements through them."""
