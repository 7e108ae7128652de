"""TensorFlow's published messages, as protocol buffers under their own full names.

Tables declare them (`tables`) in a separate descriptor pool, so that TensorFlow may be loaded in
the same process. The protobuf package is imported when a message is first used.
"""

from aioflow.protos.messages import Message as Message
from aioflow.protos.messages import enum as enum
from aioflow.protos.messages import is_message as is_message
from aioflow.protos.messages import message as message
from aioflow.protos.reading import parse as parse
from aioflow.protos.reading import parse_text as parse_text
from aioflow.protos.reading import read as read
from aioflow.protos.reading import to_bytes as to_bytes
from aioflow.protos.reading import to_text as to_text

__all__ = ["Message", "enum", "is_message", "message", "parse", "parse_text", "read", "to_bytes", "to_text"]
