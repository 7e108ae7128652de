"""A GPT-2-shaped transformer that generates text: `python -m examples.gpt2 --prompt "Once upon a time"`.

Its weights are random with a seed, or loaded from a folder in Hugging Face's layout (`--folder FOLDER`: `config.json`,
`model.safetensors`, `vocab.json` and `merges.txt`). Loaded weights are memory-mapped, not copied. Without a vocabulary,
each byte is a token.

`model.py` has the graph, `generation.py` the token streams and their caches, `folder.py` reads a folder, and
`tokenizer.py` converts text to tokens.
"""
