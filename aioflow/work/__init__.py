"""Support for long-running work: cancellation, calls in threads, copies, forks, and context stacks."""
