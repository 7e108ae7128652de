"""aioflow in web services: complete small programs.

Each is tested as a separate process, with clients that cancel, disconnect and send invalid input.

`with_starlette.py`, `with_fastapi.py` and `with_aiohttp.py` serve a model whose concurrent callers share steps.
`with_websockets.py` accepts messages instead of requests. `two_models.py` has two models and their versions in one
process. `tokens/` streams the output of a language model. `digits.py` is the model that they serve, and `bodies.py`
reads requests.
"""
