"""`aioflow.app`, `aioflow.flags` and `aioflow.resource_loader`."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aioflow as af

absl_flags: Any = importlib.import_module("absl.flags") if importlib.util.find_spec("absl") is not None else None

needs_absl = pytest.mark.skipif(absl_flags is None, reason="absl-py, of the extra flags, is not installed")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Undo what `absl.app` changes in the process: parsed flags, and the handler of the root logger."""
    if absl_flags is None:
        yield
        return
    importlib.import_module("absl.app")  # which defines flags of its own
    root, absl_logger = logging.getLogger(), logging.getLogger("absl")
    kept = root.handlers[:], root.level, absl_logger.handlers[:], absl_logger.level, absl_logger.propagate
    absl_flags.FLAGS.unparse_flags()
    yield
    absl_flags.FLAGS.unparse_flags()
    root.handlers[:], root.level, absl_logger.handlers[:], absl_logger.level, absl_logger.propagate = kept


def exit_code(main: Callable[[list[str]], Any] | None, argv: list[str] | None) -> object:
    with pytest.raises(SystemExit) as caught:
        af.app.run(main, argv)
    return caught.value.code


@pytest.fixture(params=["with absl", pytest.param("without absl", marks=[])])
def program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without absl":
        monkeypatch.setattr("aioflow.app.find_spec", lambda name: None)
    elif absl_flags is None:
        pytest.skip("absl-py, of the extra flags, is not installed")


@pytest.mark.usefixtures("program")
def test_run_exits_with_the_result_of_main(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    async def coroutine(argv: list[str]) -> int:
        await asyncio.sleep(0)
        seen.append(argv)
        return 3

    assert exit_code(lambda argv: seen.append(argv), ["p", "a"]) is None
    assert exit_code(coroutine, ["p", "b"]) == 3
    monkeypatch.setattr(sys, "argv", ["p", "c"])
    monkeypatch.setattr(sys.modules["__main__"], "main", coroutine, raising=False)
    assert exit_code(None, None) == 3
    assert seen == [["p", "a"], ["p", "b"], ["p", "c"]]
    with pytest.raises(RuntimeError, match="of main"):
        af.app.run(_failing, ["p"])


def _failing(argv: list[str]) -> None:
    raise RuntimeError("of main")


def test_missing_absl_is_answered_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(af.flags), "DEFINE_enum", raising=False)
    for name in ("absl", "absl.flags"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(af.errors.UnimplementedError, match=r"absl package.*pip install '.*\[flags\]'"):
        _ = af.flags.DEFINE_enum


@pytest.fixture
def own_flags(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Have no flags but those of the test."""
    assert absl_flags is not None
    kept = {name: absl_flags.FLAGS[name] for name in absl_flags.FLAGS}
    yield af.flags
    for name in set(absl_flags.FLAGS) - set(kept):
        delattr(absl_flags.FLAGS, name)


@needs_absl
def test_run_parses_flags_and_leaves_unknown_ones(own_flags: Any) -> None:
    own_flags.DEFINE_string("word", "a", "A word.")
    own_flags.DEFINE_integer(flag_name="steps", default_value=10, docstring="TensorFlow's older names.")
    own_flags.DEFINE_bool("fast", True, "Speed.")
    own_flags.DEFINE_multi_integer("sizes", [1], "Sizes.")
    found: list[Any] = []

    def main(argv: list[str]) -> None:
        flags = af.flags.FLAGS
        found.extend([flags.word, flags.steps, flags.fast, flags.sizes, argv, flags.flag_values_dict()["steps"]])

    argv = ["p", "--word=b", "--steps", "3", "--nofast", "--sizes=4", "--sizes=5", "--other=1", "rest"]
    assert exit_code(main, argv) is None
    assert found == ["b", 3, False, [4, 5], ["p", "--other=1", "rest"], 3]
    with pytest.raises(own_flags.IllegalFlagValueError, match="steps"):
        af.app.run(main, ["p", "--steps=many"])


@needs_absl
def test_flags_are_parsed_on_first_use_and_are_absls(own_flags: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert absl_flags is not None
    absl_flags.DEFINE_float("rate", None, "Defined by absl.")
    own_flags.mark_flag_as_required("rate")
    monkeypatch.setattr(sys, "argv", ["p", "--rate=0.25"])
    assert not af.flags.FLAGS.is_parsed()
    assert af.flags.FLAGS.rate == 0.25
    assert ("rate" in af.flags.FLAGS, af.flags.FLAGS["rate"].value, af.flags.FLAGS.is_parsed()) == (True, 0.25, True)
    af.flags.FLAGS.rate = 1.0
    assert absl_flags.FLAGS.rate == 1.0
    with pytest.raises(own_flags.DuplicateFlagError):
        own_flags.DEFINE_float("rate", 0.1, "Again.")
    with pytest.raises(AttributeError):
        _ = af.flags.FLAGS.unknown


def test_resources_are_beside_the_module_that_calls() -> None:
    folder = Path(__file__).parent
    assert af.resource_loader.get_data_files_path() == str(folder)
    assert af.resource_loader.get_root_dir_with_all_resources() == str(folder)
    assert af.resource_loader.get_path_to_datafile("x/y") == str(folder / "x/y")
    assert af.resource_loader.load_resource("test_app.py") == Path(__file__).read_bytes()
    assert af.resource_loader.readahead_file_path("x", "1M") == "x"
    with pytest.raises(af.errors.NotFoundError, match="missing"):
        af.resource_loader.load_resource("missing")
    program: dict[str, Any] = {"load": af.resource_loader.get_root_dir_with_all_resources}
    exec(compile("found = load()", "/b/p.runfiles/repository/package/p.py", "exec"), program)
    assert program["found"] == "/b/p.runfiles/repository"
