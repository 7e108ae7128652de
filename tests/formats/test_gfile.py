"""`aioflow.gfile` and `aioflow.io.gfile`, on local files and in a store."""

from __future__ import annotations

import inspect
import uuid
from pathlib import Path

import pytest

import aioflow as af
from tests.support.gfile_cases import EVERYWHERE, LOCAL, fill, outcome

ERRORS = (af.errors.OpError, TypeError)


@pytest.mark.parametrize("name", [*EVERYWHERE, *LOCAL])
def test_local_files(name: str, tmp_path: Path) -> None:
    case = {**EVERYWHERE, **LOCAL}[name]
    fill(af.gfile, str(tmp_path))
    assert outcome(case, af.gfile, str(tmp_path), ERRORS) == case[1]


@pytest.mark.parametrize("name", EVERYWHERE)
def test_files_of_a_store(name: str) -> None:
    folder = f"memory://{uuid.uuid4().hex}"
    fill(af.gfile, folder)
    try:
        assert outcome(EVERYWHERE[name], af.gfile, folder, ERRORS) == EVERYWHERE[name][1]
    finally:
        af.gfile.DeleteRecursively(folder)


def test_urls_of_files_paths_and_bytes_name_local_files(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("ab")
    for name in (f"file://{tmp_path}/f", tmp_path / "f", f"{tmp_path}/f".encode()):
        assert (af.gfile.Exists(name), af.gfile.GFile(name).read()) == (True, "ab")
    assert af.gfile.Glob(f"file://{tmp_path}/*") == [f"file://{tmp_path}/f"]


def test_files_move_between_stores_and_folders(tmp_path: Path) -> None:
    store = f"memory://{uuid.uuid4().hex}"
    with af.io.gfile.GFile(af.io.gfile.join(store, "f"), "w") as file:
        file.write("ab")
    af.gfile.Rename(f"{store}/f", f"{tmp_path}/f")
    assert (af.gfile.Exists(f"{store}/f"), (tmp_path / "f").read_text()) == (False, "ab")
    with pytest.raises(af.errors.InvalidArgumentError, match="nowhere"):
        af.gfile.Exists("nowhere://f")


def test_both_namespaces_have_the_same_functions() -> None:
    names = {"isdir": "IsDirectory", "listdir": "ListDirectory", "makedirs": "MakeDirs", "mkdir": "MkDir",
             "rmtree": "DeleteRecursively"}  # fmt: skip
    for new in set(af.io.gfile.__all__) - {"GFile", "join"}:
        old = getattr(af.gfile, names.get(new, new.capitalize()))
        number = len(inspect.signature(old).parameters)
        assert number == len(inspect.signature(getattr(af.io.gfile, new)).parameters) - (new == "walk")
    assert af.gfile.Open is af.gfile.FastGFile is af.io.gfile.GFile
