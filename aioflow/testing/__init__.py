"""Tools for extending aioflow: evaluation by the reference executor, and checks of new ops."""
