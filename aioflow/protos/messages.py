"""Message classes, created on first use."""

from __future__ import annotations

import functools
import threading
from typing import Any, Final, TypeAlias

from aioflow.concurrency.forking import not_forked

Message: TypeAlias = Any  # protobuf creates its classes at run time

_PACKAGE: Final = "tensorflow"
_MAKING: Final = threading.RLock()  # classes of two pools are incompatible, so only one pool may be made


def pool() -> Any:
    """Return the pool with the descriptors of all messages, including the protobuf messages that they use."""
    with not_forked(), _MAKING:
        return _made()


@functools.cache
def _made() -> Any:
    from google.protobuf import any_pb2, descriptor_pool, wrappers_pb2

    from aioflow.protos import tables
    from aioflow.protos.declaring import declare

    made = descriptor_pool.DescriptorPool()
    # A file comes after those that it imports.
    made.AddSerializedFile(any_pb2.DESCRIPTOR.serialized_pb)
    made.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    errors = declare("aioflow/errors.proto", f"{_PACKAGE}.error", tables.ERRORS, ())
    made.AddSerializedFile(errors.SerializeToString())
    needed = (errors.name, any_pb2.DESCRIPTOR.name, wrappers_pb2.DESCRIPTOR.name)
    table = tables.GRAPHS + tables.MODELS + tables.EVENTS + tables.SETTINGS
    made.AddSerializedFile(declare("aioflow/tensorflow.proto", _PACKAGE, table, needed).SerializeToString())
    return made


@functools.cache
def message(name: str) -> Message:
    """Return the class of a message: "GraphDef", or "AttrValue.ListValue" for a nested one.

    Raises:
        KeyError: no table declares the message.
    """
    with not_forked():
        from google.protobuf import message_factory

    return message_factory.GetMessageClass(pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


@functools.cache
def enum(name: str) -> Any:
    """Return an enum, with `Name(number)` and `Value(name)`: "DataType", or "SaverDef.CheckpointFormatVersion".

    Raises:
        KeyError: no table declares the enum.
    """
    with not_forked():
        from google.protobuf.internal import enum_type_wrapper

    return enum_type_wrapper.EnumTypeWrapper(pool().FindEnumTypeByName(f"{_PACKAGE}.{name}"))


def is_message(value: object, name: str) -> bool:
    """Return True if `value` is a message of that name, of this pool or another (TensorFlow's or tensorboard's)."""
    full_name = getattr(getattr(type(value), "DESCRIPTOR", None), "full_name", "")
    return full_name in (f"{_PACKAGE}.{name}", f"tensorboard.{name}")
