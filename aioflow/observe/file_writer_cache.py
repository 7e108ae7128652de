"""A cache of writers by folder, which all hooks of a program share."""

from __future__ import annotations

import os
from typing import ClassVar

from aioflow.concurrency.forking import Locked
from aioflow.graph.default_graph import default_graph
from aioflow.observe.file_writer import FileWriter


class FileWriterCache:
    """The writers of a program, by folder."""

    _writers: ClassVar[dict[str, FileWriter]] = {}
    _guard: ClassVar[Locked] = Locked()

    @classmethod
    def get(cls, logdir: str | os.PathLike[str]) -> FileWriter:
        """Return the writer of a folder. If it has none, create one with the default graph."""
        folder = os.fspath(logdir)
        with cls._guard.lock:
            if folder not in cls._writers:
                cls._writers[folder] = FileWriter(folder, default_graph())
            return cls._writers[folder]

    @classmethod
    async def clear(cls) -> None:
        """Close all writers and remove them. Raises the first error after all have been tried."""
        # Closed outside of the lock: closing waits for the disk.
        with cls._guard.lock:
            writers = list(cls._writers.values())
            cls._writers.clear()
        errors = []
        for writer in writers:
            try:
                await writer.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
