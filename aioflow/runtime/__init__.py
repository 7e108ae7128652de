"""Running a step: everything below the seam, in the process that owns the devices."""
