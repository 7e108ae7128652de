"""Pickling and copying of every error class with all fields, since errors cross process boundaries."""

from __future__ import annotations

import copy
import importlib
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aioflow
from aioflow import TensorShape, float32
from aioflow.errors import AioflowError, OpError, SourceLine
from aioflow.interop.safetensors.assigning import Leftover, Misfit, WeightsError
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp


def _import_all() -> None:
    """Import the modules that define errors."""
    root = Path(aioflow.__file__).parent
    for path in root.rglob("*.py"):
        if re.search(r"^class \w+Error\(", path.read_text(encoding="utf-8"), re.MULTILINE):
            importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))


def _classes(kind: type[AioflowError]) -> Iterator[type[AioflowError]]:
    for each in kind.__subclasses__():
        if each.__module__.startswith("aioflow."):
            yield each
            yield from _classes(each)


def _plain(kind: type[AioflowError]) -> AioflowError:
    if not issubclass(kind, OpError):
        return kind("it failed")
    source = SourceLine("model.py", 3, "build")
    return kind("it failed", node="n", op_type="Add", source=source, expected=TensorShape([None, 2]), actual=float32)


_OTHERS: dict[type[AioflowError], Callable[[], AioflowError]] = {
    UnsupportedError: lambda: UnsupportedError("m.onnx", [UnsupportedOp("Gru", "n"), UnsupportedOp("Gru", "m", "no")]),
    WeightsError: lambda: WeightsError(Leftover(["a"], ["b"], ["c"]), [Misfit("v", "w", "[2]", "[3]")], {"a": "v"}),
}
_COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
}


@pytest.mark.parametrize("way", _COPIES)
def test_every_error_is_copied_with_its_fields(way: str) -> None:
    _import_all()
    kinds: set[type[AioflowError]] = {AioflowError, *_classes(AioflowError)}
    assert len(kinds) > 25
    for kind in kinds:
        error: Any = _OTHERS[kind]() if kind in _OTHERS else _plain(kind)
        error.may_have_been_applied = False
        error.retry_after = 0.5
        error.add_note("of the step")
        found = _COPIES[way](error)
        assert type(found) is kind
        assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))
