"""Streams of tokens from a model that is called in a loop: many streams share each step.

`slots` assigns streams to slots and selects the next computation, without I/O. `engine` is the task that runs the
steps, `steps` calls the model and has its states, and `streams` decodes requests and encodes responses.
"""
