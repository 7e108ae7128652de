"""`--import`: the commands and the worker know the ops of a user's own module."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import aioflow as af
from aioflow import extend
from aioflow.cli import main
from aioflow.graph.opdef import OPS
from aioflow.kernels.registry import KERNELS
from tests.support import processes

_MODULE = """
from aioflow import extend
extend.define_op("TestImported", "x: T", "y: T", ["T: {floats}"], shape=lambda ctx: ctx.dims("x"))
extend.kernel("TestImported")(lambda x: x + x.dtype.type(41))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the name of a module that defines `TestImported` and has not been imported yet."""
    (tmp_path / "ops_of_a_user.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "ops_of_a_user"
    sys.modules.pop("ops_of_a_user", None)
    OPS._ops.pop("TestImported", None)
    KERNELS._kernels.pop("TestImported", None)


def test_ops_lists_ops_of_the_module(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--traits", "--import", module]) == 0
    assert "\nTestImported " in capsys.readouterr().out


def test_explain_reads_a_graph_with_imported_ops(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = f"import {module}, aioflow as af\naf.raw_ops.TestImported(x=af.placeholder(af.float32, [2]), name='y')\n"
    code += f"af.train.write_graph(af.get_default_graph(), {str(tmp_path)!r}, 'g.json')"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)
    assert main(["explain", str(tmp_path / "g.json"), "--fetch", "y"]) == 2
    assert "--import" in capsys.readouterr().err
    assert main(["explain", str(tmp_path / "g.json"), "--fetch", "y", "--import", module]) == 0
    assert "TestImported" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "No module named 'ops_that_fail'"), ("raise ValueError('no good')", "ValueError: no good")],
)
def test_failing_import_is_one_line(
    text: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "ops_that_fail.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit):
        main(["ops", "--import", "ops_that_fail"])
    printed = capsys.readouterr().err
    assert says in printed
    assert printed.count("\n") == 1


async def test_worker_runs_imported_ops(module: str, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    assert main(["ops", "--json", "--import", module]) == 0
    command = ["-m", "aioflow.worker", "--cluster", f"worker={address}", "--job", "worker", "--task", "0"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    async with processes.program_on_loop(*command, "--import", module, env=environment) as worker:
        if worker.stdout is None or b"serves at" not in await worker.stdout.readline():
            raise AssertionError("it does not serve")
        async with af.Session(f"aioflow://{address}") as session:
            assert await session.run(extend.make("TestImported", 1.0), timeout=30.0) == 42.0
