"""Synchronization primitives as plain state machines: locks, queues, barriers, staging areas, accumulators."""
