"""Declared messages against TensorFlow's: every message, field, number, type, label, oneof and enum value."""

from typing import Any

import pytest

from aioflow.protos.messages import pool

pytestmark = pytest.mark.parity

FILES = (
    *("framework.graph", "framework.function", "framework.op_def", "framework.variable", "framework.tensor_slice"),
    *("protobuf.meta_graph", "protobuf.saved_model", "protobuf.saved_object_graph", "protobuf.tensor_bundle"),
    *("protobuf.trackable_object_graph", "protobuf.queue_runner", "protobuf.control_flow", "protobuf.struct"),
    *("protobuf.saver", "protobuf.fingerprint", "util.saved_tensor_slice"),
    *("framework.summary", "framework.step_stats", "framework.cost_graph", "protobuf.config", "util.event"),
)


@pytest.fixture(scope="module")
def published() -> Any:
    import importlib

    from google.protobuf import descriptor_pool
    from tensorflow.python.training import checkpoint_state_pb2  # noqa: F401

    for name in FILES:
        importlib.import_module(f"tensorflow.core.{name}_pb2")
    return descriptor_pool.Default()


def file_of(name: str) -> Any:
    return pool().FindFileByName(f"aioflow/{name}.proto")


def test_every_message_matches_tensorflow(published: Any) -> None:
    waiting = list(file_of("tensorflow").message_types_by_name.values())
    seen = 0
    while waiting:
        own = waiting.pop()
        waiting += own.nested_types
        theirs = published.FindMessageTypeByName(own.full_name)
        # GraphDebugInfo has the older syntax, which does not pack fields and keeps default values.
        newer = not own.full_name.startswith("tensorflow.GraphDebugInfo")
        assert described(own, newer) == described(theirs, newer)
        seen += 1
    assert seen > 100


def described(message: Any, newer: bool) -> dict[str, Any]:
    return {
        "fields": {field.number: field_of(field, newer) for field in message.fields},
        "nested": {nested.name for nested in message.nested_types},
        "enums": {enum.name: values(enum) for enum in message.enum_types},
        "is a map's": message.GetOptions().map_entry,
    }


def field_of(field: Any, newer: bool) -> tuple[Any, ...]:
    return (
        field.name,
        field.type,
        field.is_repeated,
        field.message_type and field.message_type.full_name,
        field.enum_type and field.enum_type.full_name,
        field.containing_oneof and field.containing_oneof.name,
        field.has_presence if newer else None,
        field.is_packed if newer else None,
    )


def values(enum: Any) -> dict[int, str]:
    return {value.number: value.name for value in enum.values}


def test_every_enum_matches_tensorflow(published: Any) -> None:
    for name in ("tensorflow", "errors"):
        for own in file_of(name).enum_types_by_name.values():
            assert values(own) == values(published.FindEnumTypeByName(own.full_name))
