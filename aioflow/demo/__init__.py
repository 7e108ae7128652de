"""`python -m aioflow demo`: training and serving in one event loop, which is aioflow's main use.

`main` needs the extra `demo` (starlette, uvicorn, httpx, rich, matplotlib); no other module of aioflow does. `cluster`,
a parameter server and its workers, does not need it.
"""
