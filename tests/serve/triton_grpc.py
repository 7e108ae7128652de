"""NVIDIA's gRPC client, which is rarely installed: it needs a protobuf before 7."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

__all__ = ["triton_grpc"]


def triton_grpc(name: str = "") -> Any:
    """Return `tritonclient.grpc` or one of its modules, or skip the test or module if it cannot be imported."""
    try:
        return import_module(f"tritonclient.grpc{name}")
    except Exception as error:  # RuntimeError without grpcio, any error with a newer protobuf
        pytest.skip(f"no tritonclient[grpc]: tox -e serving-grpc ({error})", allow_module_level=True)
