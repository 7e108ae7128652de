"""Tests of the compiler process: search, version query, time limits and cleanup, and of the behavior without one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aioflow.errors import DeadlineExceededError, FailedPreconditionError, NotFoundError, OpError
from aioflow_numpy.compiled import code as module
from aioflow_numpy.compiled.code import Programs, ProgramStore, describe, find
from aioflow_numpy.compiled.pieces import EXACT_FLOATS
from tests.system.compiled.chains import compiler

NOTHING = "void piece0(long rows, long width) {}"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that installs a shell script as the compiler."""

    def make(text: str) -> Path:
        path = tmp_path / "compiler"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o700)
        monkeypatch.setenv("AIOFLOW_CC", str(path))
        return path

    return make


ASKED = 'case "$*" in *-dM*) echo \'#define __VERSION__ "1.0 of the test"\'; exit 0;; esac\n'


def test_missing_compiler_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AIOFLOW_CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotFoundError):
        find()
    assert describe()["C compiler"].startswith("not used: no C compiler was found")


@compiler
@pytest.mark.parametrize(("method", "fits"), [(0, True), (1, False), (2, False), (16, True)])
def test_exact_floats_check_the_evaluation_method(method: int, fits: bool) -> None:
    """Accept method 16 besides 0.

    Compilers for processors with half-precision arithmetic report 16. For all other types it means the same as 0.
    """
    command = [find().path, "-fsyntax-only", "-w", f"-D__FLT_EVAL_METHOD__={method}", "-xc", "-"]
    done = subprocess.run(command, input=EXACT_FLOATS, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode == 0) is fits, done.stderr


def test_compiler_with_a_relative_path_is_rejected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: Callable[[str], Path]
) -> None:
    script(ASKED).rename(tmp_path / "cc")
    monkeypatch.delenv("AIOFLOW_CC")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ".")
    with pytest.raises(NotFoundError):
        find()


def test_compiler_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOFLOW_CC", "off")
    with pytest.raises(FailedPreconditionError):
        find()


@pytest.mark.parametrize(
    ("text", "said"),
    [("echo broken >&2; exit 3", "3: broken"), ("exit 0", "does not report a compiler version"), ("kill -9 $$", "137")],
)
def test_program_that_does_not_answer_like_a_compiler_is_rejected(
    script: Callable[[str], Path], text: str, said: str, tmp_path: Path
) -> None:
    script(text)
    with pytest.raises(FailedPreconditionError) as caught:
        Programs(ProgramStore(tmp_path / "kept")).functions(NOTHING, [0])
    assert said in str(caught.value)
    assert said in describe()["C compiler"]


def test_unsupported_flags_are_omitted(script: Callable[[str], Path]) -> None:
    script('case "$*" in *-march*) exit 1;; esac\n' + ASKED)
    assert "-mcpu=native" in find().flags


def test_compiler_is_not_called_again_after_three_failures(script: Callable[[str], Path], tmp_path: Path) -> None:
    script(f"{ASKED}echo once >> {tmp_path / 'log'}; exit 1")
    programs = Programs(ProgramStore(tmp_path / "kept"))
    for i in range(10):
        with pytest.raises(FailedPreconditionError):
            programs.functions(f"{NOTHING} // {i}", [0])
    assert (tmp_path / "log").read_text().count("once") == 3


@pytest.mark.parametrize("text", ["echo nonsense > made.so", "exit 0"])
def test_output_that_cannot_be_loaded_raises(script: Callable[[str], Path], tmp_path: Path, text: str) -> None:
    script(ASKED + text)
    with pytest.raises(OpError):
        Programs(ProgramStore(tmp_path / "kept")).functions(NOTHING, [0])


def test_timed_out_compiler_is_killed_with_its_children(
    script: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_COMPILE", 0.5)
    script(f"{ASKED}sleep 1000 & echo $! $$ > {tmp_path / 'ids'}; pwd > {tmp_path / 'folder'}; sleep 1000")
    with pytest.raises(DeadlineExceededError):
        Programs(ProgramStore(tmp_path / "kept")).functions(NOTHING, [0])
    for number in (tmp_path / "ids").read_text().split():
        until_gone(int(number))
    assert not Path((tmp_path / "folder").read_text().strip()).exists()


@pytest.mark.parametrize("end", ["", "SIGTERM", "SIGKILL"])
def test_compiler_ends_with_the_process_and_its_folder_is_removed(
    script: Callable[[str], Path], tmp_path: Path, end: str
) -> None:
    script(f"{ASKED}pwd > {tmp_path / 'folder'}; echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/id; sleep 1000")
    program = (
        "import os, signal, sys, time\n"
        "from pathlib import Path\n"
        "from aioflow_numpy.compiled.wanted import BACKGROUND\n"
        "from aioflow_numpy.compiled.code import Programs\n"
        "BACKGROUND.begin(lambda: Programs().functions('', []))\n"
        "while not Path(sys.argv[1]).exists(): time.sleep(0.01)\n"
        "if sys.argv[2]: os.kill(os.getpid(), signal.Signals[sys.argv[2]])\n"
    )
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", program, str(tmp_path / "id"), end]
    done = subprocess.run(command, env=environ, timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == (-signal.Signals[end] if end else 0), done.stderr
    until_gone(int((tmp_path / "id").read_text()))
    assert not Path((tmp_path / "folder").read_text().strip()).exists()


def test_daemon_started_by_the_compiler_is_not_awaited(
    script: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ANSWER", 5.0)
    script(f"sleep 1000 & echo $! > {tmp_path / 'id'}\n{ASKED}")
    try:
        assert find().version == "1.0 of the test"
    finally:
        os.kill(int((tmp_path / "id").read_text()), signal.SIGKILL)


def test_old_temporary_folders_of_crashed_processes_are_removed(
    script: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    old, young, another = (tmp_path / name for name in ("aioflow-cc-old", "aioflow-cc-young", "another"))
    linked = tmp_path / "aioflow-cc-linked"
    linked.symlink_to(another)
    for folder in (old, young, another):
        folder.mkdir()
        (folder / "made.so").touch()
    for folder in (old, another):
        os.utime(folder, (0, 0))
    script(ASKED)
    find()
    assert not old.exists()
    assert (young / "made.so").exists()
    assert (linked / "made.so").exists()


def until_gone(number: int) -> None:
    """Wait until a killed process is gone or a zombie: the process that inherits it may reap it late."""
    while True:
        try:
            os.kill(number, 0)
            if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (ProcessLookupError, FileNotFoundError):
            return


@compiler
def test_program_is_compiled_once_and_loaded_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "void piece0(long rows, long width, int *out) { *out = rows + width; }"
    first = Programs(ProgramStore(tmp_path / "kept"))
    (function,) = first.functions(text, [1])
    assert first.functions(text, [1])[0] is function

    def refuse(*given: Any) -> bytes:
        raise AssertionError("it was kept")

    monkeypatch.setattr(module.Compiler, "compile", refuse)
    Programs(ProgramStore(tmp_path / "kept")).functions(text, [1])


@compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("moment", ["it compiles", "it looks for a folder"])
def test_forked_child_compiles_on_its_own(tmp_path: Path, moment: str) -> None:
    """Fork while the parent's compiler runs. The child does not wait for it."""
    program = f"""
import os, sys, tempfile, threading, time
from pathlib import Path
from tests.system.compiled.chains import gate, gate_inputs
from aioflow_numpy.compiled import blocks as compiled_blocks
from aioflow_numpy.compiled.wanted import BACKGROUND
from aioflow_numpy.compiled.code import Compiler

compiled_blocks._WORTH = 0
compile = Compiler.compile
def slowly(self, text):
    made = compile(self, text)
    while not Path("{tmp_path}/forked").exists():
        time.sleep(0.01)
    return made
Compiler.compile = slowly
blocks, inputs = gate(), gate_inputs(1000)
wanted = blocks.chain(inputs).tobytes()

def run():
    for _ in range(4):
        assert blocks.run(inputs).tobytes() == wanted
    Path("{tmp_path}/forked").touch()
    assert BACKGROUND.wait(30)
    assert next(iter(plans())).compiled.function is not None
    assert blocks.run(inputs).tobytes() == wanted

def plans():
    yield blocks._plan(tuple(value.shape for value in inputs), None)

looking = threading.Event()
find_folder = tempfile._get_default_tempdir
def find_folder_slowly():
    looking.set()
    time.sleep(0.2)
    return find_folder()
if {moment == "it looks for a folder"}:
    tempfile.tempdir, tempfile._get_default_tempdir = None, find_folder_slowly
for _ in range(3):
    blocks.run(inputs)
if {moment == "it looks for a folder"}:
    assert looking.wait(30)
child = os.fork()
if child == 0:
    run()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
run()
"""
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, timeout=90, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
