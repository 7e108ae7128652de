"""Hooks of schemathesis, which does not know the names and inputs of the models.

Most of its valid requests are changed to address a loaded model: `m` takes rows of three, and `other` exists to be
unloaded.
"""

from __future__ import annotations

import random
from typing import Any, Final

import schemathesis
from schemathesis import GenerationMode

CHANCE: Final = random.Random(1)


def map_case(context: Any, case: Any) -> Any:
    """Address a loaded model in three of four valid cases; leave invalid cases as they are."""
    if case.meta is None or case.meta.generation.mode != GenerationMode.POSITIVE or CHANCE.random() < 0.25:
        return case
    known = {"model": "other" if case.path.endswith("load") else "m", "version": "1"}
    case.path_parameters = {name: known.get(name, value) for name, value in (case.path_parameters or {}).items()}
    if case.path.endswith("/infer") and case.media_type == "application/json":
        count = CHANCE.randrange(1, 5)
        data = [[CHANCE.uniform(-9, 9) for _ in range(3)] for _ in range(count)]
        case.body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [count, 3], "data": data}]}
        case.headers.pop("Inference-Header-Content-Length", None)
    if case.path.endswith(":predict"):
        case.body = {"instances": [[CHANCE.uniform(-9, 9) for _ in range(3)]]}
    return case


schemathesis.hook(map_case)
