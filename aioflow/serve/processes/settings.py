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
from aioflow.observe.logs import LogOptions
from aioflow.serve.options import ModelOptions, ServerOptions
from aioflow.serve.protocol import Limits
from aioflow.serve.sources import ModelSource
from aioflow.session.batching import Padding


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a serving process.

    Attributes:
        models, where, limits: As in `Server`.
        options: The options of each model, by name.
        memory_budget: Bytes, for each process.
        imports: Modules that register ops.
        quorum: Number of processes that must be ready for the service to be ready.
        unloaded: Models that clients have unloaded.
        logs: The form of the logs; None if a module of `imports` configures them.
    """

    models: Mapping[str, ModelSource]
    options: Mapping[str | None, ModelOptions]
    where: ServerOptions
    limits: Limits
    memory_budget: int | None = None
    imports: tuple[str, ...] = ()
    quorum: int = 1
    unloaded: tuple[str, ...] = ()
    logs: LogOptions | None = None

    def to_json(self) -> bytes:
        """Return the settings as JSON. Raises InvalidArgumentError if an option has no JSON form, such as a tensor."""
        return json.dumps(self, default=_plain).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Settings:
        """Return the settings from the JSON that `to_json` returned."""
        data = json.loads(text)
        models = data["models"]
        for source in models.values():
            source["versions"] = None if source["versions"] is None else tuple(source["versions"])
            source["shapes"] = {name: dims_of(sizes) for name, sizes in source["shapes"].items()}
        data["models"] = {name: ModelSource(**source) for name, source in models.items()}
        data["options"] = {name: _options(**options) for name, options in data["options"].items()}
        data["where"], data["limits"] = ServerOptions(**data["where"]), Limits(**data["limits"])
        data["imports"], data["unloaded"] = tuple(data["imports"]), tuple(data["unloaded"])
        data["logs"] = None if data["logs"] is None else LogOptions(**data["logs"])
        return cls(**data)


def _options(
    config: Mapping[str, Any] | None, allowed_batch_sizes: Sequence[int], pad: Mapping[str, Any], **named: Any
) -> ModelOptions:
    return ModelOptions(
        config=None if config is None else SessionConfig(**config),
        allowed_batch_sizes=tuple(allowed_batch_sizes),
        pad={name: _padding(**each) if isinstance(each, dict) else each for name, each in pad.items()},
        **named,
    )


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
