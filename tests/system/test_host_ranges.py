"""Tests of ranges of hosts against those of a shell."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from aioflow.distributed.cluster_settings import expand_addresses


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash, whose ranges these are")
def test_ranges_expand_as_in_bash() -> None:
    patterns = ["n{0..3}", "n{08..11}", "n{1..010}", "a{0..1}b{9..12}c", "{0..0}", "{000..2}"]
    done = subprocess.run(
        ["bash", "-c", "\n".join(f"echo {p}" for p in patterns)], capture_output=True, text=True, check=True, timeout=60
    )
    for pattern, line in zip(patterns, done.stdout.splitlines(), strict=True):
        assert expand_addresses(pattern) == line.split()
