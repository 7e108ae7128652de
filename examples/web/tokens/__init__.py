"""The output of a language model as server-sent events: `uvicorn examples.web.tokens.service:app`.

Many streams share each step of the model (continuous batching; Yu et al., "Orca", OSDI 2022). They join and leave
between two steps, and no stream waits for another to end.

`slots.py` assigns streams to slots and selects the next computation, `computing.py` has the model and its caches,
`engine.py` is the task that connects them, and `service.py` is the web service.
"""
