"""The graph as users build it: element types, shapes, op definitions, nodes, and scopes."""
