"""The graph as a user builds it: element types, shapes, op definitions, nodes and the scopes they are made in."""
