"""Loss of a Ray node: three nodes on this machine, and a program that restarts its cluster."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from tests.distributed.lost_node import LOST_AT
from tests.support.processes import SECONDS, program

pytest.importorskip("ray", reason="Ray is of the extra `ray`")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")


@pytest.fixture
def folder() -> Iterator[str]:
    """Yield a folder for the files of Ray. Its name is short, because names of sockets are limited."""
    found = tempfile.mkdtemp(prefix="ray")
    yield found
    shutil.rmtree(found, ignore_errors=True)


@pytest.mark.soak
def test_training_continues_on_the_remaining_nodes(folder: str) -> None:
    environment = os.environ | {
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # otherwise Ray writes one to the user's folder
    }
    environment.pop("RAY_ADDRESS", None)
    with program("-m", "tests.distributed.lost_node", env=environment, stderr=subprocess.DEVNULL) as running:
        printed, _ = running.communicate(timeout=2 * SECONDS)
        assert running.returncode == 0
    said = [line for line in printed.splitlines() if re.match("the worker is|begins|lost|ends", line)]
    first, begins, lost, second, again, ends = said
    assert {first, second} == {f"the worker is at 127.0.0.{number}" for number in (2, 3)}
    assert begins == "begins at 0"
    assert "/job:worker/replica:0/task:0 is lost with its node" in lost
    assert 0 < int(again.removeprefix("begins at ")) <= LOST_AT  # the step of a checkpoint
    assert ends == "ends"
