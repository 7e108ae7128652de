"""Machine code is asked for when NumPy has worked as long as compiling takes, and sooner where it is kept already."""

from __future__ import annotations

from pathlib import Path

import pytest

from aioflow_numpy.compiled import wanted as module
from aioflow_numpy.compiled.background import BACKGROUND
from aioflow_numpy.compiled.code import Programs
from aioflow_numpy.compiled.store import Store
from aioflow_numpy.compiled.wanted import Spent, Wanted
from tests.processes import SECONDS
from tests.system.compiled.chains import compiler

TEXT = "void piece0(long m, long n, int *out) { *out = m + n; }"

pytestmark = compiler


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Those of this process, as long as nothing is kept."""
    made = Programs(Store(tmp_path / "kept"))
    monkeypatch.setattr(module, "programs", lambda: made)
    monkeypatch.setattr(module, "_EARLIER", 16)
    return made


def _times(wanted: Wanted, spent: int, text: str | None = TEXT) -> int:
    """How often it is prepared once so much of a hundred more is spent."""
    prepared: list[bool] = []
    wanted.worked(spent, 100, lambda: prepared.append(True), lambda: text)
    assert BACKGROUND.wait(SECONDS)
    return len(prepared)


def test_what_is_not_kept_is_asked_for_once_it_is_worth_it(mine: Programs) -> None:
    wanted = Wanted()
    assert [_times(wanted, 33) for _ in range(5)] == [0, 0, 0, 1, 0]
    assert not mine._store.folder.exists()
    assert mine._compiler is None, "a process that computes little does not even ask the compiler what it is"


def test_what_another_process_has_kept_is_asked_for_much_sooner(mine: Programs, tmp_path: Path) -> None:
    Programs(Store(tmp_path / "kept")).functions(TEXT, [1])
    wanted = Wanted()
    assert [_times(wanted, 3) for _ in range(4)] == [0, 0, 1, 0]
    other, none = Wanted(), Wanted()
    assert [_times(other, 10, TEXT + " ") for _ in range(11)] == [0] * 9 + [1, 0], "of that nothing is kept"
    assert [_times(none, 10, None) for _ in range(11)] == [0] * 9 + [1, 0]


def test_who_has_the_same_code_spends_together(mine: Programs) -> None:
    spent = Spent()
    one, other = Wanted(spent), Wanted(spent)
    assert [_times(each, 40) for each in (one, other, one, other, one)] == [0, 0, 1, 1, 0]


def test_a_folder_that_may_not_be_looked_into_is_no_error(
    mine: Programs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def closed(path: Path) -> bool:
        raise PermissionError(f"{path} belongs to somebody else")

    monkeypatch.setattr(Path, "is_dir", closed)
    assert [_times(Wanted(), 10)] == [0]
    assert not caplog.text


def test_a_compiler_that_is_switched_off_is_no_error(
    mine: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").mkdir()
    monkeypatch.setenv("AIOFLOW_CC", "off")
    assert [_times(Wanted(), 10)] == [0]
