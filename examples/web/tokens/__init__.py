"""The output of a language model as server-sent events: `uvicorn examples.web.tokens.service:app`.

Many streams share each step of the model (continuous batching; Yu et al., "Orca", OSDI 2022). They join and leave
between two steps, and no stream waits for another to end.

`aioflow.serve.tokens` assigns streams to slots and runs the steps, `computing.py` has the model and its caches, and
`service.py` is the web service.
"""
