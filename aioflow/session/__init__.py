"""Sessions: from a request to a plan, the steps in flight, and their results."""
