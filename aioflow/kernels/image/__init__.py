"""Kernels that decode, encode, resize, transform and draw on images."""
