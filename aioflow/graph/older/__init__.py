"""Definitions that older producers wrote, in terms of the ops that are here.

In TensorFlow 1's first years a variable was a node whose output referred to a buffer, and queues, readers and arrays of
tensors were strings. Here all of these are resources.
"""
