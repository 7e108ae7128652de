"""Compilation of a step: from the user's graph to a plan of subgraphs per device, in pure functions over plain data."""
