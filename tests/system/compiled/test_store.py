"""Tests of compiled programs on disk: they serve later processes, and only files that belong to the user are loaded."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aioflow.errors import ResourceExhaustedError
from aioflow_numpy.compiled import code as module
from aioflow_numpy.compiled.code import Programs, ProgramStore, describe
from tests.support import processes
from tests.system.compiled.chains import compiler

TEXT = "void piece0(long rows, long width, int *out) { *out = rows + width; }"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "home" / "kept"


def test_stored_code_is_found(folder: Path) -> None:
    path = ProgramStore(folder).keep("key", b"machine code")
    assert path is not None
    assert ProgramStore(folder).find("key") == path
    assert path.read_bytes().startswith(b"machine code")
    assert ProgramStore(folder).find("other") is None


def test_folder_is_accessible_to_the_user_only(folder: Path) -> None:
    before = os.umask(0)
    try:
        ProgramStore(folder).keep("key", b"machine code")
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]


def writable(folder: Path, path: Path) -> None:
    folder.chmod(0o770)


def writable_above(folder: Path, path: Path) -> None:
    folder.parent.chmod(0o777)


def writable_file(folder: Path, path: Path) -> None:
    path.chmod(0o666)


def cut_off(folder: Path, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def altered(folder: Path, path: Path) -> None:
    contents = bytearray(path.read_bytes())
    contents[3] ^= 1
    path.write_bytes(contents)


def empty(folder: Path, path: Path) -> None:
    path.write_bytes(b"")


def linked(folder: Path, path: Path) -> None:
    path.rename(folder.parent / "elsewhere")
    path.symlink_to(folder.parent / "elsewhere")


def a_pipe(folder: Path, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "harm", [writable, writable_above, writable_file, cut_off, altered, empty, linked, a_pipe], ids=lambda f: f.__name__
)
def test_files_that_may_not_be_the_users_own_are_not_loaded(folder: Path, harm: Callable[[Path, Path], None]) -> None:
    path = ProgramStore(folder).keep("key", b"x" * 100)
    assert path is not None
    harm(folder, path)
    assert ProgramStore(folder).find("key") is None


def test_folder_of_another_user_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ProgramStore(folder).keep("key", b"machine code")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    store = ProgramStore(folder)
    assert store.find("key") is None
    assert store.keep("key", b"other code") is None
    assert "another user's" in str(store.problem())


def test_sticky_parent_folder_is_accepted(folder: Path) -> None:
    folder.parent.mkdir()
    folder.parent.chmod(0o1777)  # like /tmp
    assert ProgramStore(folder).keep("key", b"machine code") is not None


def test_user_without_a_home_stores_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check that the store does not use the working directory, which may be an unpacked archive of unknown origin."""
    monkeypatch.chdir(tmp_path)
    assert ProgramStore(Path(".cache")).keep("key", b"machine code") is None
    assert not list(tmp_path.iterdir())


def test_least_recently_used_files_are_removed_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_FILES", 3)
    store = ProgramStore(folder)
    for i in range(3):
        path = store.keep(f"key{i}", b"machine code")
        assert path is not None
        os.utime(path, (i, i))
    store.find("key0")
    store.keep("key3", b"machine code")
    assert [i for i in range(4) if store.find(f"key{i}")] == [0, 2, 3]


@compiler
@pytest.mark.parametrize("why", ["full", "read-only", "hostile"])
def test_code_is_loaded_without_a_usable_folder(folder: Path, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True)
    if why == "full":

        def refuse(*given: Any) -> None:
            raise ResourceExhaustedError("no space left on device")

        monkeypatch.setattr(module, "write_atomically", refuse)
    elif why == "read-only":
        monkeypatch.setattr(module, "write_atomically", lambda *given: (folder / "no" / "such").write_bytes(b""))
    else:
        folder.chmod(0o777)
    (function,) = Programs(ProgramStore(folder)).functions(TEXT, [1])
    assert callable(function)
    assert not list(folder.iterdir())


@compiler
def test_doctor_reports_why_a_folder_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert f"kept in {tmp_path}/aioflow/compiled" in describe()["C compiler"]
    tmp_path.chmod(0o777)
    assert f"others may write to {tmp_path}" in describe()["C compiler"]


@compiler
def test_processes_may_compile_the_same_program_at_once(tmp_path: Path) -> None:
    program = f"""
from ctypes import addressof, c_int
from pathlib import Path
from aioflow_numpy.compiled.code import Programs, ProgramStore

for i in range(3):
    (function,) = Programs(ProgramStore(Path({str(tmp_path / "kept")!r}))).functions({TEXT!r} + f"// {{i}}", [1])
    out = c_int()
    function(2, 3, addressof(out))
    assert out.value == 5
"""
    with ExitStack() as stack:
        running = [stack.enter_context(processes.program("-c", program, stderr=subprocess.PIPE)) for _ in range(3)]
        for process in running:
            _, complaints = process.communicate(timeout=90)
            assert process.returncode == 0, complaints
    assert len(list((tmp_path / "kept").iterdir())) == 3
