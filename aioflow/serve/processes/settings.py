"""The settings of a serving process, which its supervisor sends as JSON."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from aioflow.config import SessionConfig
from aioflow.errors import InvalidArgumentError
from aioflow.graph.shapes import dims_of
from aioflow.serve.options import ModelOptions, ServerOptions
from aioflow.serve.protocol import Limits
from aioflow.serve.sources import ModelSource
from aioflow.session.batching import Padding


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a serving process.

    Attributes:
        models, options, where, limits: As in `Server`.
        memory_budget: Bytes, for each process.
        imports: Modules that register ops.
        quorum: Number of processes that must be ready for the service to be ready.
        unloaded: Models that clients have unloaded.
    """

    models: Mapping[str, ModelSource]
    options: ModelOptions
    where: ServerOptions
    limits: Limits
    memory_budget: int | None = None
    imports: tuple[str, ...] = ()
    quorum: int = 1
    unloaded: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        """Return the settings as JSON. Raises InvalidArgumentError if an option has no JSON form, such as a tensor."""
        return json.dumps(self, default=_plain).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Settings:
        """Return the settings from the JSON that `to_json` returned."""
        data = json.loads(text)
        models, options, config = data["models"], data["options"], data["options"]["config"]
        for source in models.values():
            source["versions"] = None if source["versions"] is None else tuple(source["versions"])
            source["shapes"] = {name: dims_of(sizes) for name, sizes in source["shapes"].items()}
        options["config"] = None if config is None else SessionConfig(**config)
        options["allowed_batch_sizes"] = tuple(options["allowed_batch_sizes"])
        pads = options["pad"].items()
        options["pad"] = {name: _padding(**pad) if isinstance(pad, dict) else pad for name, pad in pads}
        data["models"] = {name: ModelSource(**source) for name, source in models.items()}
        data["options"] = ModelOptions(**options)
        data["where"], data["limits"] = ServerOptions(**data["where"]), Limits(**data["limits"])
        data["imports"], data["unloaded"] = tuple(data["imports"]), tuple(data["unloaded"])
        return cls(**data)


def _padding(cuts: Sequence[str], **named: Any) -> Padding:
    return Padding(cuts=tuple(cuts), **named)


def _plain(value: object) -> object:
    if is_dataclass(value):
        # Not `asdict`, which copies recursively and would bypass the conversions below.
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    elif isinstance(value, Collection):
        return list(value)
    raise InvalidArgumentError(
        "an option cannot be passed to a process", expected="numbers, strings, and names of tensors", actual=repr(value)
    )
