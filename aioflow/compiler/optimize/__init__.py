"""Stage 3: rewrite the pruned graph into an equivalent one that does less. Each pass is a file with its idea named."""
