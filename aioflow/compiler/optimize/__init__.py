"""Stage 3: rewriting of the pruned graph into an equivalent one that does less. Each pass is a module."""
