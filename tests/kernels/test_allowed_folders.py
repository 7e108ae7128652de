"""Folders in which a worker's graphs may open files: the rule, and its enforcement in every kernel that opens files."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError, OpError, PermissionDeniedError
from aioflow.formats import allowed_folders
from aioflow.formats.allowed_folders import ANYWHERE, AllowedFolders
from aioflow.graph.opdef import OPS
from aioflow.kernels.registry import KERNELS
from aioflow.ops.apply import make_op
from aioflow.runtime.worker import Worker

# -- the rule ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with an allowed folder `in`, a forbidden folder `out`, and links between them."""
    for name in ("in/sub", "out", "in-and-more"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("in/a.txt", "in/sub/b.txt", "out/secret.txt", "in-and-more/c.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "in" / "leads_out").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "secret_link.txt").symlink_to(tmp_path / "out" / "secret.txt")
    (tmp_path / "in" / "leads_in").symlink_to(tmp_path / "in" / "sub")
    (tmp_path / "way_in").symlink_to(tmp_path / "in")
    return tmp_path


INSIDE: Final = {
    "in": "in",
    "in/a.txt": "in/a.txt",
    "in/new/deep/file": "in/new/deep/file",
    "out/../in/a.txt": "in/a.txt",
    "in/leads_in/b.txt": "in/sub/b.txt",
    "way_in/a.txt": "in/a.txt",
    "in//./sub/../a.txt": "in/a.txt",
}
OUTSIDE: Final = (
    "out/secret.txt",
    "in/../out/secret.txt",
    "in/missing/../../out/secret.txt",
    "in/leads_out/secret.txt",
    "in/secret_link.txt",
    "in/leads_out/../in/../out/secret.txt",
    "in-and-more/c.txt",
    "",
)


@pytest.mark.parametrize("given", INSIDE)
def test_file_returns_the_resolved_name(place: Path, given: str) -> None:
    assert AllowedFolders([place / "in"]).file(f"{place}/{given}") == str(place / INSIDE[given])


@pytest.mark.parametrize("given", OUTSIDE)
def test_file_outside_allowed_folders_is_refused(place: Path, given: str) -> None:
    with pytest.raises(PermissionDeniedError) as raised:
        AllowedFolders([place / "in"]).file(f"{place}/{given}")
    assert (raised.value.actual, str(place / "in") in str(raised.value.expected)) == (f"{place}/{given}", True)
    assert "--allow-dir" in str(raised.value)


def test_relative_names_resolve_against_the_working_directory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    folders = AllowedFolders(["in"])
    assert folders.file("in/a.txt") == str(place / "in/a.txt")
    monkeypatch.chdir(place / "in")
    assert folders.file("a.txt") == str(place / "in/a.txt"), "a folder stays the one that it was when it was given"
    with pytest.raises(PermissionDeniedError):
        folders.file("in/../../out/secret.txt")


def test_root_can_be_allowed() -> None:
    assert AllowedFolders(["/"]).file("/etc/hostname")


def test_allowed_folder_may_be_a_link_and_be_added_later(place: Path) -> None:
    folders = AllowedFolders()
    with pytest.raises(PermissionDeniedError, match="none"):
        folders.file(str(place / "in/a.txt"))
    folders.allow(place / "way_in")
    assert folders.file(str(place / "in/a.txt")) == str(place / "in/a.txt")


@pytest.mark.parametrize("wrong", ["/data", b"/data", Path("/data"), [""]])
def test_single_name_instead_of_a_list_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        AllowedFolders(wrong)


@pytest.mark.parametrize(("given", "warned"), [("in", True), ("in/sub", True), ("in/leads_in", True), ("out", False)])
@pytest.mark.parametrize("entry", ["in/sub", ""])
def test_folder_on_the_module_path_causes_a_warning(
    place: Path, given: str, warned: bool, entry: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(place / "in" / "sub")
    monkeypatch.setattr(sys, "path", [str(place / entry) if entry else ""])
    AllowedFolders([place / given])
    assert ("imports modules" in caplog.text) == warned


STORE: Final = "memory://bucket/run"


@pytest.mark.parametrize("url", ["memory://bucket/run/", "memory://bucket/run/model-5", "memory://bucket/run/a..b/c"])
def test_url_in_allowed_store_is_accepted(url: str) -> None:
    AllowedFolders([STORE + "/"]).check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "memory://bucket/runs/model",
        "memory://bucket/run",  # the files of this checkpoint would be run.safetensors and so on
        "memory://bucket/run/../other/model",
        "memory://bucket/run/%2e%2e/other",
        "memory://bucket/run/..\\other",
        "memory://bucket",
        "s3://bucket/run/model",
        "simplecache::memory://bucket/run/model",
        "memory://bucket/run/x::file:///etc/passwd",
        "file::/etc/passwd",
    ],
)
def test_url_outside_allowed_stores_is_refused(url: str) -> None:
    with pytest.raises(PermissionDeniedError):
        AllowedFolders([STORE]).check_url(url)


def test_folders_do_not_allow_urls_nor_urls_folders(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(PermissionDeniedError):
        AllowedFolders(["/"]).check_url(STORE)
    with pytest.raises(PermissionDeniedError):
        AllowedFolders([STORE]).file(STORE)


def test_matching_lists_only_allowed_files(place: Path) -> None:
    folders = AllowedFolders([place / "in"])

    def listed(pattern: str) -> list[str]:
        return sorted(os.path.relpath(name, place) for name in folders.matching(f"{place}/{pattern}"))

    assert listed("in/*.txt") == ["in/a.txt"]
    assert listed("in/*/*.txt") == ["in/leads_in/b.txt", "in/sub/b.txt"]
    assert listed("in/a.txt") == ["in/a.txt"]
    assert listed("in/sub/") == ["in/sub"]
    assert listed("in/[!l]ub/b.t?t") == ["in/sub/b.txt"]
    assert listed("in/secret_link.txt") == []
    for pattern in ("*", "out/*", "i*/a.txt", "in/*/../../out/*", "in/leads_out/*", "in/../*"):
        with pytest.raises(PermissionDeniedError):
            listed(pattern)


def test_anywhere_does_not_change_names(place: Path) -> None:
    assert ANYWHERE.file("a/../b") == "a/../b"
    ANYWHERE.check_url("s3://anything")
    ANYWHERE.allow(place)
    assert sorted(ANYWHERE.matching(f"{place}/out/*")) == [f"{place}/out/secret.txt"]


# -- enforcement in every kernel ---------------------------------------------------------------------------------------

_SEEN: Final[list[tuple[Any, ...]]] = []
_WATCHED: list[str] = []


def _note(event: str, given: tuple[Any, ...]) -> None:
    """Record audit events about watched folders.

    An audit hook cannot be removed, so it has to be quick.
    """
    if _WATCHED and event.partition(".")[0] in ("open", "os", "glob", "shutil", "pathlib", "tempfile", "sqlite3"):
        names = [os.fsdecode(name) for name in given if isinstance(name, str | bytes | os.PathLike)]
        if any(place in name for name in names for place in _WATCHED):
            _SEEN.append((event, *names))


sys.addaudithook(_note)


@contextmanager
def watched(place: Path) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the audit events about a folder during this block."""
    _SEEN.clear()
    _WATCHED.append(str(place))
    try:
        yield _SEEN
    finally:
        _WATCHED.clear()


def _read_by(reader: Any, path: str) -> Any:
    queue = af.FIFOQueue(1, [af.string], [[]])
    with af.control_dependencies([queue.enqueue([path])]):
        return reader.read(queue)


# For each kernel that opens files: a function that makes a node which opens one of them, from its name without suffix.
def _read_table(path: str) -> Any:
    names = af.lookup.TextFileInitializer(
        f"{path}.txt", af.string, af.lookup.TextFileIndex.WHOLE_LINE, af.int64, af.lookup.TextFileIndex.LINE_NUMBER
    )
    return af.lookup.StaticHashTable(names, -1).initializer


OPENING: Final[dict[str, Callable[[str], Any]]] = {
    "ReadFile": lambda path: af.io.read_file(f"{path}.txt"),
    "WriteFile": lambda path: af.io.write_file(f"{path}.new", "x"),
    "InitializeTableFromTextFileV2": _read_table,
    "MatchingFiles": lambda path: af.io.matching_files(f"{path}*"),
    "SaveV2": lambda path: af.raw_ops.SaveV2(
        prefix=path + "-2", tensor_names=["v"], shape_and_slices=[""], tensors=[[1.0]]
    ),
    "_SaveBlocks": lambda path: af.raw_ops._SaveBlocks(
        prefix=path + "-3", base=path, tensor_names=["v"], shape_and_slices=[""], tensors=[[1.0]], name="blocks"
    ),
    "_SaveBundle": lambda path: af.raw_ops._SaveBundle(
        prefix=path + "-4", tensor_names=["v"], shape_and_slices=[""], tensors=[[1.0]], name="bundle"
    ),
    "RestoreV2": lambda path: af.raw_ops.RestoreV2(
        prefix=path, tensor_names=["v"], shape_and_slices=[""], dtypes=[af.float32]
    ),
    "WholeFileReaderV2": lambda path: _read_by(af.WholeFileReader(), f"{path}.txt"),
    "TextLineReaderV2": lambda path: _read_by(af.TextLineReader(), f"{path}.txt"),
    "FixedLengthRecordReaderV2": lambda path: _read_by(af.FixedLengthRecordReader(2), f"{path}.txt"),
    "TFRecordReaderV2": lambda path: _read_by(af.TFRecordReader(), f"{path}.records"),
}


def test_opening_covers_every_kernel_that_opens_files() -> None:
    assert {k.op for k in KERNELS if k.opens_files} == set(OPENING)


@pytest.fixture
async def files(tmp_path: Path) -> Path:
    """Return a folder with a checkpoint and files to read."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "there.txt").write_text("one\ntwo\n")
    with af.io.TFRecordWriter(str(folder / "there.records")) as writer:
        writer.write(b"record")
    with af.Graph().as_default():
        saved = af.raw_ops.SaveV2(
            prefix=str(folder / "there"), tensor_names=["v"], shape_and_slices=[""], tensors=[[1.0]]
        )
        async with af.Session() as session:
            await session.run(saved)
    return folder


@pytest.mark.parametrize("op", OPENING)
async def test_forbidden_file_is_never_accessed(op: str, files: Path) -> None:
    before = sorted(os.listdir(files))
    worker = Worker(folders=AllowedFolders([files.parent / "in"]))
    node = OPENING[op](str(files / "there"))
    async with af.Session(worker) as session:
        with watched(files) as seen, pytest.raises(PermissionDeniedError) as raised:
            await session.run(node)
    assert seen == []
    assert (str(files / "there") in str(raised.value.actual), bool(raised.value.node)) == (True, True)
    assert sorted(os.listdir(files)) == before


@pytest.mark.parametrize("has_dir_fd", [True, False])
@pytest.mark.parametrize("op", OPENING)
async def test_allowed_file_is_opened(op: str, has_dir_fd: bool, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowed_folders, "_WALKS", has_dir_fd and allowed_folders._WALKS)
    worker = Worker(folders=AllowedFolders([files]))
    node = OPENING[op](str(files / "there"))
    async with af.Session(worker) as session:
        with watched(files) as seen:
            await session.run(node)
    assert seen, "this test would not see it either"


@pytest.mark.parametrize("op", ["RestoreV2"])
@pytest.mark.parametrize("suffix", [".manifest.json", ".safetensors"])
async def test_checkpoint_file_that_links_outside_is_refused(op: str, suffix: str, files: Path) -> None:
    inside = files.parent / "in"
    inside.mkdir()
    for name in ("there.manifest.json", "there.safetensors"):
        if name.endswith(suffix):
            (inside / name).symlink_to(files / name)
        else:
            (inside / name).write_bytes((files / name).read_bytes())
    async with af.Session(Worker(folders=AllowedFolders([inside]))) as session:
        with watched(files) as seen, pytest.raises(PermissionDeniedError):
            await session.run(OPENING[op](str(inside / "there")))
    assert seen == []


@pytest.mark.parametrize("prefix", ["memory://elsewhere/model", "ftp://127.0.0.1:9/model"])
@pytest.mark.parametrize("op", ["SaveV2", "_SaveBlocks", "RestoreV2"])
async def test_forbidden_store_is_never_connected(op: str, prefix: str) -> None:
    async with af.Session(Worker(folders=AllowedFolders(["memory://given"]))) as session:
        with pytest.raises(PermissionDeniedError, match="may not open"):
            await session.run(OPENING[op](prefix))


async def test_forbidden_store_of_a_base_checkpoint_is_never_connected(tmp_path: Path) -> None:
    save = af.raw_ops._SaveBlocks(
        prefix=str(tmp_path / "a"),
        base="ftp://127.0.0.1:9/b",
        tensor_names=["v"],
        shape_and_slices=[""],
        tensors=[[1.0]],
        name="blocks",
    )
    async with af.Session(Worker(folders=AllowedFolders([tmp_path]))) as session:
        with pytest.raises(PermissionDeniedError, match=r"127\.0\.0\.1"):
            await session.run(save)


# -- links that change concurrently ------------------------------------------------------------------------------------


SECRET = 7357.5  # no name of a file has this, unlike a few digits, which its random part may have


async def _fill(folder: Path, word: str, value: float) -> None:
    """Write every file that the nodes of `OPENING` read or write, marked by a word and a number."""
    for name in ("there.txt", "there.new", f"there-{word}"):
        (folder / name).write_text(f"{word}\n{word}\n")
    with af.io.TFRecordWriter(str(folder / "there.records")) as writer:
        writer.write(word.encode())
    with af.Graph().as_default():
        tensors = {"tensor_names": ["v"], "shape_and_slices": [""], "tensors": [[value]]}
        saved = [
            af.raw_ops.SaveV2(prefix=str(folder / "there"), **tensors),
            af.raw_ops.SaveV2(prefix=str(folder / "there-2"), **tensors),
            af.raw_ops._SaveBlocks(prefix=str(folder / "there-3"), base="", name="blocks", **tensors),
            af.raw_ops._SaveBundle(prefix=str(folder / "there-4"), name="bundle", **tensors),
        ]
        async with af.Session() as session:
            await session.run(saved)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the folders `secret` and `public`, each filled by `_fill`."""
    place = tmp_path_factory.mktemp("filled")
    for word, value in (("secret", SECRET), ("public", 1.0)):
        (place / word).mkdir()
        asyncio.run(_fill(place / word, word, value))
    return place


@contextmanager
def turned(inside: Path, outside: Path, what: str, at: int) -> Iterator[list[str]]:
    """Replace a folder, or each file in it, by a link once `at` names have been resolved."""
    resolved: list[str] = []
    realpath = os.path.realpath

    def resolve_and_turn(path: Any, *args: Any, **options: Any) -> Any:
        real = realpath(path, *args, **options)
        resolved.append(str(real))
        if len(resolved) == at:
            if what == "folder":
                inside.rename(inside.with_name("before"))
                inside.symlink_to(outside)
            else:
                for file in outside.iterdir():
                    (inside / file.name).unlink(missing_ok=True)
                    (inside / file.name).symlink_to(file)
        return real

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os.path, "realpath", resolve_and_turn)
        yield resolved


def _contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.skipif(os.open not in os.supports_dir_fd, reason="the system opens no names relative to a folder")
@pytest.mark.parametrize("what", ["folder", "files"])
@pytest.mark.parametrize("op", OPENING)
async def test_link_made_after_the_check_is_not_followed(op: str, what: str, filled: Path, tmp_path: Path) -> None:
    outside, inside = tmp_path / "out", tmp_path / "in" / "sub"
    shutil.copytree(filled / "secret", outside)
    before, node = _contents(outside), OPENING[op](str(inside / "there"))
    at, resolved = 0, [""]
    while len(resolved) >= at:
        # Exact positions at first, then larger steps: a kernel resolves many names.
        at += 1 + at // 6
        shutil.rmtree(inside.parent, ignore_errors=True)
        shutil.copytree(filled / "public", inside)
        async with af.Session(Worker(folders=AllowedFolders([inside.parent]))) as session:
            found = ""
            with turned(inside, outside, what, at) as resolved, suppress(OpError):
                found = str(await session.run(node))
        assert ("secret" in found or str(SECRET) in found, _contents(outside) == before) == (False, True), (at, found)


# -- all other kernels -------------------------------------------------------------------------------------------------


def _argument(arg: Any, op_def: Any, path: str) -> Any:
    """Return the path for an argument that may be a string, otherwise a number."""
    dtype = arg.dtype or _type_of(op_def.attrs.get(arg.type_attr))
    value = af.constant(path if dtype is af.string else 1, dtype)
    return [value] if arg.is_sequence else value


def _type_of(attr: Any) -> af.DType:
    if attr is None or attr.allowed is None or af.string in attr.allowed:
        return af.string
    kind: af.DType = attr.allowed[0]
    return kind


def _attribute(attr: Any, path: str) -> Any:
    samples = {"string": path, "type": _type_of(attr), "int": 1, "float": 1.0, "bool": True, "shape": ()}
    kind = attr.kind.removeprefix("list(").removesuffix(")")
    return [samples[kind]] if attr.kind != kind else samples[kind]


def _given_a_path(op_def: Any, path: str) -> Any:
    """Make a node of the op with the path for each string input and attribute."""
    values = [_argument(arg, op_def, path) for arg in op_def.inputs]
    known = {arg.type_attr for arg in op_def.inputs} | {arg.number_attr for arg in op_def.inputs}
    attrs = {
        name: _attribute(attr, path)
        for name, attr in op_def.attrs.items()
        if name not in known and ((attr.kind == "string" and attr.allowed is None) or not attr.has_default)
    }
    return make_op(op_def.name, *values, name="node", **attrs)


async def test_other_kernels_open_no_file_named_by_their_strings(files: Path) -> None:
    """Pass a file's name to every op with strings, and check by audit events that no kernel accesses the file."""
    opening = {k.op for k in KERNELS if k.opens_files}
    ran, path = [], str(files / "there.txt")
    for op_def in OPS:
        takes_strings = any(arg.dtype is af.string or arg.type_attr for arg in op_def.inputs) or any(
            "string" in attr.kind for attr in op_def.attrs.values()
        )
        if not takes_strings or op_def.name in opening or op_def.made_by != "user" or op_def.traits.is_control_flow:
            continue
        with af.Graph().as_default():
            try:
                node = _given_a_path(op_def, path)
            except (OpError, TypeError, ValueError, KeyError):
                continue
            async with af.Session(Worker(folders=AllowedFolders())) as session:
                with watched(files) as seen, suppress(OpError):
                    await session.run(node, timeout=0.5)
                    ran.append(op_def.name)
            assert seen == [], op_def.name
    assert len(ran) > 150, ran
