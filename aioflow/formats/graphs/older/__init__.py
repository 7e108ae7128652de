"""Conversion of node definitions from early TensorFlow 1 to the ops that aioflow defines.

In TensorFlow 1's first years a variable was a node whose output referred to a buffer, and the handles of queues,
readers and tensor arrays were strings. In aioflow all of these are resources.
"""
