"""Sessions: the step cache, the planner, steps in flight, batches, streams and partial runs."""
