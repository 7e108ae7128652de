"""Tools for those who extend aioflow: evaluation by the reference executor, and checks that a new op can be put
through.
"""
