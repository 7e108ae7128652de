"""Models in a folder of aioflow's own: graph, signatures, weights, assets."""

__all__: list[str] = []
