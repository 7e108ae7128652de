"""What a language model writes, as server-sent events: `uvicorn examples.web.tokens.service:app`.

Many streams share each step of the model (continuous batching; Yu et al., "Orca", OSDI 2022): they join and leave
between two steps, and none waits for another one to end.

`slots.py` decides which stream is where and what is computed next, `computing.py` has the model and its caches,
`engine.py` is the task between them, `service.py` the web service.
"""
