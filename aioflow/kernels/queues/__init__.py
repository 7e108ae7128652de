"""Kernels of queues, barriers, staging areas and accumulators."""
