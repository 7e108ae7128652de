"""A GPT-2-shaped transformer that writes, token by token: `python -m examples.gpt2 --prompt "Once upon a time"`.

Its weights are random by a seed, or those of a folder in Hugging Face's layout (`--folder FOLDER`: `config.json`,
`model.safetensors`, `vocab.json` and `merges.txt`), which are mapped and not copied. Without a vocabulary bytes are
tokens.

`model.py` has the graph, `generation.py` the streams of tokens and their caches, `folder.py` what is read from a
folder, `tokenizer.py` text as tokens.
"""
