"""Models in a folder of aioflow's own: graph, signatures, weights, assets."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.loading.later import load_later as _load_later

# ruff: noqa: TC004
# Loaded with the first use.
if _TYPE_CHECKING:
    from aioflow.interop.model import Model as Model
    from aioflow.interop.model import Signature as Signature
    from aioflow.interop.model import TokenLoop as TokenLoop
    from aioflow.interop.model import TokenState as TokenState
    from aioflow.saved.reading import load as load
    from aioflow.saved.writing import save as save

__all__ = ["Model", "Signature", "TokenLoop", "TokenState", "load", "save"]

_load_later(
    __name__,
    {
        "Model": "aioflow.interop.model",
        "Signature": "aioflow.interop.model",
        "TokenLoop": "aioflow.interop.model",
        "TokenState": "aioflow.interop.model",
        "load": "aioflow.saved.reading",
        "save": "aioflow.saved.writing",
    },
)
