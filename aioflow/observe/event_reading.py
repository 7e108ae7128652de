"""Reading of event files."""

from __future__ import annotations

import os
from collections.abc import Iterator

from aioflow.formats.tfrecord import tf_record_iterator
from aioflow.protos import Message, parse


def summary_iterator(path: str | os.PathLike[str]) -> Iterator[Message]:
    """Yield the `Event` messages of a file, in order. Reading blocks: beside an event loop, iterate in a thread.

    Raises:
        NotFoundError: there is no such file.
        DataLossError: a record is truncated or altered, or is not an event.
    """
    for record in tf_record_iterator(path):
        yield parse("Event", record)
