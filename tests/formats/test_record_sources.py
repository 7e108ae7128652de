"""What readers have open is closed with them."""

from __future__ import annotations

import builtins
import gc
from pathlib import Path
from typing import Any

import pytest

from aioflow.formats.record_sources import TextLines


def test_a_source_and_its_file_may_be_garbage_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector comes to the older one first, and a file that is open then would warn of it."""
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
