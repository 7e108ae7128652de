"""aioflow inside web services: small programs, each whole, each tested as a process of its own by clients that cancel,
go away and send nonsense.

`with_starlette.py`, `with_fastapi.py` and `with_aiohttp.py` answer requests from a model whose concurrent callers share
steps; `with_websockets.py` takes messages instead of requests; `two_models.py` has two models and their versions in one
process; `tokens/` streams what a language model writes. `digits.py` is the model that they serve, `bodies.py` reads
requests.
"""
