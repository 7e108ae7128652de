"""Execution of steps: everything below the seam, in the process that owns the devices."""
