"""Programs that use sessions, each in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aioflow.concurrency.stopping import (
    largest_value,
)
from tests.support.processes import SECONDS, program

_AT_THE_END = """
import atexit

def last():  # it runs after all that aioflow has for the end
    print(loop.is_closed())
    session.__exit__(None, None, None)

atexit.register(last)
import aioflow as af

session = af.Session()
print(session.run_sync(af.constant(1.0) + 1.0))
loop = session._sync_runner._runner.get_loop()
"""


def test_loop_of_an_unclosed_session_is_closed_at_exit() -> None:
    """The session can still be closed after its loop."""
    done = subprocess.run([sys.executable, "-c", _AT_THE_END], capture_output=True, text=True, timeout=SECONDS)
    assert (done.stdout, done.stderr, done.returncode) == ("2.0\nTrue\n", "", 0)


_PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize("name", ["two_cells", "fixtures"])
def test_program_runs_without_warnings(name: str, tmp_path: Path) -> None:
    """Run two IPython cells, and fixtures of pytest-asyncio and pytest-aiohttp."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(_PROGRAMS / f"{name}.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


TASK = "/job:localhost/replica:0/task:0"
LOGGING = """
import io, json, logging, sys
import aioflow as af

def shown():
    sys.stderr = io.StringIO()
    yield
    y = af.add(af.placeholder("float32", [], name="x"), 1.0, name="y")
    with af.Session(config=af.SessionConfig(log_device_placement=True)) as session:
        session.run_sync(y, {"x:0": 1.0})
    yield sys.stderr.getvalue()

def case(configure, undo=lambda: None):
    with af.Graph().as_default():
        steps = shown()
        next(steps)
        configure()
        results.append(next(steps))
        undo()
        del logging.root.handlers[:], logging.getLogger("aioflow").handlers[:]

results = []
case(lambda: None)
assert not logging.getLogger("aioflow").handlers and not logging.getLogger("aioflow.placement").handlers
case(lambda: logging.basicConfig(level=logging.INFO, format="<%(levelname)s %(message)s>"))
logging.root.setLevel(logging.WARNING)
case(lambda: logging.basicConfig())
case(lambda: logging.getLogger("aioflow").addHandler(logging.NullHandler()))
case(lambda: logging.disable(logging.INFO), lambda: logging.disable(logging.NOTSET))
case(lambda: setattr(logging, "lastResort", None))
print(json.dumps(results))
"""


def test_placement_is_logged_to_stderr_without_logging_configuration() -> None:
    """With logging configured, its handlers and levels decide whether and how the placement is shown."""
    done = subprocess.run([sys.executable, "-c", LOGGING], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    plain, informed, *silent = json.loads(done.stdout)
    line = f"y: (AddV2): {TASK}/device:CPU:0"
    assert line in plain.splitlines()
    assert f"<INFO {line}>" in informed.splitlines()
    assert informed.count(line) == 1
    assert silent == ["", "", "", ""]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not hold a process to its address space")
def test_largest_value_is_at_most_half_of_the_available_memory() -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from aioflow.concurrency.stopping import largest_value
print(largest_value())
"""
    with program("-c", code) as process:
        said, _ = process.communicate(timeout=SECONDS)
    assert int(said) <= 3 << 29
    psutil = pytest.importorskip("psutil")
    assert largest_value() <= psutil.virtual_memory().total // 2


def test_program_exits_despite_an_endless_call_in_a_thread() -> None:
    code = """
import asyncio, threading
from aioflow.concurrency.threads import in_thread

async def main():
    entered = threading.Event()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(in_thread(lambda: (entered.set(), threading.Event().wait()), effects=False))
        await asyncio.to_thread(entered.wait)
        task.cancel()
    print("over")

asyncio.run(main())
"""
    with program("-c", code) as process:
        said, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, said) == (0, "over\n")


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
def test_program_exits_despite_a_thread_blocked_in_a_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-X", "dev", "-c", _READS_A_PIPE, str(tmp_path / "pipe")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("leaves\n", "")
