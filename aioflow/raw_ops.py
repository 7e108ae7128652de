"""One builder per op, made from its definition: `raw_ops.MatMul(a=x, b=y, transpose_a=True, name="product")`.

Inputs and attributes are keyword arguments under the names of the signature. Attributes that the inputs imply (dtypes,
counts) are left out. The builders are made from the registry on first use, so ops that users register are included.
"""

import typing as _typing  # under another name: there is an op called Any

from aioflow.ops.raw_builders import builder_of as _builder_of
from aioflow.ops.raw_builders import public_ops as _public_ops


def __getattr__(name: str) -> _typing.Callable[..., _typing.Any]:
    return _builder_of(name, __name__)


def __dir__() -> list[str]:
    return _public_ops()
