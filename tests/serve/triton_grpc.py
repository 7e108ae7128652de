"""NVIDIA's client for gRPC, which is rarely there: it wants a protobuf before 7."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

__all__ = ["triton_grpc"]


def triton_grpc(name: str = "") -> Any:
    """`tritonclient.grpc`, or a module in it. Skips the test, or the whole module, where it cannot be imported."""
    try:
        return import_module(f"tritonclient.grpc{name}")
    except Exception as error:  # without grpcio it raises RuntimeError, beside a newer protobuf what that likes
        pytest.skip(f"no tritonclient[grpc]: tox -e serving-grpc ({error})", allow_module_level=True)
