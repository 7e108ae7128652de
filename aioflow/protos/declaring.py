"""Protocol buffer messages from a table, with a line for each message, enum or service.

    NodeDef: 1 name string; 3 input string*; 5 attr <string,AttrValue>; kind { 7 i int64; 8 s bytes }
    enum DataType: 0 DT_INVALID; 1 DT_FLOAT
    service Health: Check HealthCheckRequest HealthCheckResponse; Watch HealthCheckRequest HealthCheckResponse*

- A field is its number, name and type. The type is a scalar, or a message or enum of the table. A type of another
  package has the package as prefix. `*` marks a repeated field, and `<key,value>` is a map.
- Braces are a oneof.
- A method is its name, its request message and its response message. `*` marks a stream of messages.
- An indented line continues the one before.
- The name of a nested message or enum is prefixed with that of the outer message and a dot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2

_PROTO: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final[Mapping[str, int]] = {
    name: getattr(_PROTO, f"TYPE_{name.upper()}")
    for name in (
        *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32"),
        *("bool", "string", "bytes", "uint32", "sint64"),
    )
}
_TOKEN: Final = re.compile(r"(?P<oneof>\w+) \{|(?P<end>\})|(?P<number>-?\d+) (?P<name>\w+)(?: (?P<type>[^\s;}]+))?")
_METHOD: Final = re.compile(r"(\w+) (\w+)(\*?) (\w+)(\*?)")


def declare(file: str, package: str, table: str, dependencies: Iterable[str]) -> Any:
    """Return the FileDescriptorProto of a table.

    Args:
        file: Name of the file in the descriptor pool.
        package: Package of the messages.
        table: Table of messages, enums and services.
        dependencies: Names of the files that it imports.
    """
    made = descriptor_pb2.FileDescriptorProto(
        name=file, package=package, syntax="proto3", dependency=list(dependencies)
    )
    lines = dict(_lines(table))
    enums = {name.removeprefix("enum ") for name in lines if name.startswith("enum ")}
    places: dict[str, Any] = {"": made}
    for name in lines:
        if not name.startswith(("enum ", "service ")):
            outer, _, own = name.rpartition(".")
            parent = places[outer]
            places[name] = (parent.nested_type if outer else parent.message_type).add(name=own)
    for name, text in lines.items():
        if name.startswith("enum "):
            outer, _, own = name.removeprefix("enum ").rpartition(".")
            enum = places[outer].enum_type.add(name=own)
            for token in _TOKEN.finditer(text):
                enum.value.add(name=token["name"], number=int(token["number"]))
        elif name.startswith("service "):
            _add_methods(made.service.add(name=name.removeprefix("service ")), f".{package}.", text)
        else:
            _Fields(places[name], f".{package}.", name, enums).add_all(text)
    return made


def _lines(table: str) -> Iterator[tuple[str, str]]:
    """Yield the head and the rest of each line, outer messages before those nested in them."""
    joined = table.replace("\n    ", " ").strip().split("\n")
    heads = [line.partition(":") for line in joined if line]
    yield from sorted(((head, rest) for head, _, rest in heads), key=lambda line: line[0].count("."))


def _add_methods(service: Any, prefix: str, text: str) -> None:
    for name, takes, many, gives, stream in _METHOD.findall(text):
        method = service.method.add(name=name, input_type=prefix + takes, output_type=prefix + gives)
        method.client_streaming, method.server_streaming = bool(many), bool(stream)


class _Fields:
    """A builder that adds fields to one message."""

    def __init__(self, message: Any, prefix: str, name: str, enums: set[str]) -> None:
        self._message = message
        self._prefix = prefix
        self._name = name
        self._enums = enums
        self._in_oneof = False

    def add_all(self, text: str) -> None:
        for token in _TOKEN.finditer(text):
            if token["oneof"]:
                self._message.oneof_decl.add(name=token["oneof"])
                self._in_oneof = True
            elif token["end"]:
                self._in_oneof = False
            else:
                self._add(token["name"], int(token["number"]), token["type"])

    def _add(self, name: str, number: int, kind: str) -> None:
        field = self._message.field.add(name=name, number=number, label=_PROTO.LABEL_OPTIONAL)
        if self._in_oneof:
            # Set only inside a oneof, since 0 is the index of the first one.
            field.oneof_index = len(self._message.oneof_decl) - 1
        if kind.startswith("<"):
            field.label = _PROTO.LABEL_REPEATED
            self._set_type(field, self._map_entry(name, kind[1:-1]))
            return
        if kind.endswith("*"):
            field.label = _PROTO.LABEL_REPEATED
        self._set_type(field, kind.removesuffix("*"))

    def _map_entry(self, name: str, kinds: str) -> str:
        """Declare the entry message of a map, nested in the message that has the map, and return its name."""
        entry = self._message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
        # On the wire a map is a repeated message with a key (1) and a value (2); protoc names it so, too.
        entry.options.map_entry = True
        for number, (part, kind) in enumerate(zip(("key", "value"), kinds.split(","), strict=True), 1):
            self._set_type(entry.field.add(name=part, number=number, label=_PROTO.LABEL_OPTIONAL), kind)
        return f"{self._name}.{entry.name}"

    def _set_type(self, field: Any, kind: str) -> None:
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
            return
        # `error.Code` is declared in a file of its own.
        is_enum = kind in self._enums or kind == "error.Code"
        field.type = _PROTO.TYPE_ENUM if is_enum else _PROTO.TYPE_MESSAGE
        # The leading dot marks a full name, which is not searched for in the enclosing scopes.
        field.type_name = f".{kind}" if kind.startswith("google.") else self._prefix + kind
