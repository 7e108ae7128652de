"""What a process of the service is to do, as it goes over the line to it: plain data, and no secret in an argument."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aioflow.config import SessionConfig
from aioflow.serve.options import ModelOptions
from aioflow.serve.protocol import Limits
from aioflow.serve.sources import ModelSource
from aioflow.serve.where import ServerOptions

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a process must know.

    Attributes:
        models, options, where, limits: As of `Server`.
        memory_budget: Bytes, for each process.
        imports: Modules that register ops.
        quorum: How many processes must be ready for the service to be.
    """

    models: Mapping[str, ModelSource]
    options: ModelOptions
    where: ServerOptions
    limits: Limits
    memory_budget: int | None = None
    imports: tuple[str, ...] = ()
    quorum: int = 1
    unloaded: tuple[str, ...] = field(default=())  # models that somebody has taken away

    def to_json(self) -> dict[str, Any]:
        """As data that JSON has."""
        found = dataclasses.asdict(self)
        hosts = self.where.hosts
        found["where"]["hosts"] = None if hosts is None else list(hosts)
        for name in ("tls_cert", "tls_key"):
            path = found["where"][name]
            found["where"][name] = None if path is None else os.fspath(path)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        """And back."""
        options = dict(data["options"])
        config = options["config"]
        options["config"] = None if config is None else SessionConfig(**config)
        options["allowed_batch_sizes"] = tuple(options["allowed_batch_sizes"])
        return cls(
            {name: _source(each) for name, each in data["models"].items()},
            ModelOptions(**options),
            ServerOptions(**data["where"]),
            Limits(**data["limits"]),
            data["memory_budget"],
            tuple(data["imports"]),
            data["quorum"],
            tuple(data["unloaded"]),
        )


def _source(data: Mapping[str, Any]) -> ModelSource:
    versions = data["versions"]
    return ModelSource(data["path"], None if versions is None else tuple(versions))
