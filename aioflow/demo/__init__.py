"""`python -m aioflow demo`: training and serving in one event loop, which is what aioflow is for.

`main` needs the extra `demo` (starlette, uvicorn, httpx, rich, matplotlib); nothing else in aioflow does. `cluster`, a
parameter server and its workers, does not.
"""
