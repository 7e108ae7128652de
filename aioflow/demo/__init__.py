"""`python -m aioflow demo`: training and serving in one event loop, which is what aioflow is for.

Needs the extra `demo` (starlette, uvicorn, httpx, rich, matplotlib); nothing else in aioflow does.
"""

from aioflow.demo.main import main as main

__all__ = ["main"]
