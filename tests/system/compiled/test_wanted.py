"""Tests that compilation starts after NumPy has worked as long as it takes, and sooner if the code is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from aioflow_numpy.compiled import wanted as module
from aioflow_numpy.compiled.code import Programs, ProgramStore
from aioflow_numpy.compiled.wanted import BACKGROUND, CodeRequest, Spent
from tests.support.processes import SECONDS
from tests.system.compiled.chains import compiler

TEXT = "void piece0(long m, long n, int *out) { *out = m + n; }"

pytestmark = compiler


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Install programs of this process with an empty store."""
    made = Programs(ProgramStore(tmp_path / "kept"))
    monkeypatch.setattr(module, "programs", lambda: made)
    monkeypatch.setattr(module, "_EARLIER", 16)
    return made


def _times(wanted: CodeRequest, spent: int, text: str | None = TEXT) -> int:
    """Add work, in percent of the threshold, and return how many times the code is prepared."""
    prepared: list[bool] = []
    wanted.worked(spent, 100, lambda: prepared.append(True), lambda: text)
    assert BACKGROUND.wait(SECONDS)
    return len(prepared)


def test_code_that_is_not_stored_is_requested_at_the_threshold(mine: Programs) -> None:
    wanted = CodeRequest()
    assert [_times(wanted, 33) for _ in range(5)] == [0, 0, 0, 1, 0]
    assert not mine._store.folder.exists()
    assert mine._compiler is None, "a process that computes little does not even ask the compiler what it is"


def test_code_stored_by_another_process_is_requested_sooner(mine: Programs, tmp_path: Path) -> None:
    Programs(ProgramStore(tmp_path / "kept")).functions(TEXT, [1])
    wanted = CodeRequest()
    assert [_times(wanted, 3) for _ in range(4)] == [0, 0, 1, 0]
    other, none = CodeRequest(), CodeRequest()
    assert [_times(other, 10, TEXT + " ") for _ in range(11)] == [0] * 9 + [1, 0], "of that nothing is kept"
    assert [_times(none, 10, None) for _ in range(11)] == [0] * 9 + [1, 0]


def test_users_of_the_same_code_share_their_work_count(mine: Programs) -> None:
    spent = Spent()
    one, other = CodeRequest(spent), CodeRequest(spent)
    assert [_times(each, 40) for each in (one, other, one, other, one)] == [0, 0, 1, 1, 0]


def test_inaccessible_folder_is_not_an_error(
    mine: Programs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def closed(path: Path) -> bool:
        raise PermissionError(f"{path} belongs to somebody else")

    monkeypatch.setattr(Path, "is_dir", closed)
    assert [_times(CodeRequest(), 10)] == [0]
    assert not caplog.text


def test_disabled_compiler_is_not_an_error(mine: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").mkdir()
    monkeypatch.setenv("AIOFLOW_CC", "off")
    assert [_times(CodeRequest(), 10)] == [0]
