"""What readers have open is closed with them."""

from __future__ import annotations

import builtins
import gc
import os
import subprocess
import sys
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
    monkeypatch.setattr(builtins, "open", lambda *args: held.pop())
    source: Any = TextLines(bytes(path), 0)
    assert source.next() == (b"%b:1" % bytes(path), b"one")
    monkeypatch.undo()
    source.itself, descriptor = source, file.fileno()
    del source, file
    gc.collect()  # a warning fails this test
    assert not Path(f"/proc/self/fd/{descriptor}").exists() or not Path("/proc/self/fd").exists()


_READS_A_PIPE = """
import os, sys, threading, time
from aioflow.formats.record_sources import TextLines

source = TextLines(os.fsencode(sys.argv[1]), 0)
writer = os.open(sys.argv[1], os.O_RDWR)
os.write(writer, b"one\\n")
assert source.next()[1] == b"one"
threading.Thread(target=source.next, daemon=True).start()
while not source._reading.locked():
    time.sleep(0.01)
print("leaves")
"""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_process_does_not_wait_for_what_a_thread_still_reads(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-X", "dev", "-c", _READS_A_PIPE, str(tmp_path / "pipe")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("leaves\n", "")
