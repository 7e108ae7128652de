"""Open files of record readers, which are closed with their readers."""

from __future__ import annotations

import builtins
import gc
from pathlib import Path
from typing import Any

import pytest

from aioflow.formats.record_sources import TextLines


def test_collecting_a_source_with_its_file_warns_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector finalizes the older object, the file, first. A file that is still open then would warn."""
    path = tmp_path / "lines"
    path.write_text("one\ntwo\n")
    file: Any = open(path, "rb")  # noqa: SIM115 - the source closes it
    held = [file]
    monkeypatch.setattr(builtins, "open", lambda *args, **options: held.pop())
    source: Any = TextLines(bytes(path), 0)
    assert source.next() == (b"%b:1" % bytes(path), b"one")
    monkeypatch.undo()
    source.itself, descriptor = source, file.fileno()
    del source, file
    gc.collect()  # a warning fails this test
    assert not Path(f"/proc/self/fd/{descriptor}").exists() or not Path("/proc/self/fd").exists()
