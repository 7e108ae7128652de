"""Uses of `gfile`, each with its result or the name of its error.

A case is called with the module `gfile` and a folder that has a file `f` with two lines, a folder `empty`, and a folder
`d` with an empty file `.h` and a file `e/x`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

Case: TypeAlias = tuple[Callable[[Any, str], Any], Any]


def _written(mode: str, *parts: str | bytes) -> Callable[[Any, str], Any]:
    """Write over or after "old", and return the content."""

    def use(g: Any, at: str) -> Any:
        for how, pieces in (("w", ("old",)), (mode, parts)):
            with g.GFile(f"{at}/new", how) as file:
                for piece in pieces:
                    file.write(piece)
        return g.GFile(f"{at}/new").read()

    return use


def _lines(g: Any, at: str) -> Any:
    with g.Open(f"{at}/f") as file:
        first = file.readline()
        file.seek(1)
        return first, file.tell(), file.read(2), file.readlines(), file.readline(), list(g.GFile(f"{at}/f", "rb"))


def _read_and_written(g: Any, at: str) -> Any:
    with g.GFile(f"{at}/new", "w+") as file:
        file.write("12345")
        file.flush()
        return file.read(2), file.tell(), file.size(), file.read()


def _sought(g: Any, at: str) -> Any:
    file = g.GFile(f"{at}/f")
    file.seek(-3, 2)
    return file.read()


def _unwritten(g: Any, at: str) -> Any:
    with g.GFile(f"{at}/new", "w"):
        pass
    return g.Exists(f"{at}/new")


def _closed(g: Any, at: str) -> Any:
    file = g.GFile(f"{at}/f")
    file.read()
    file.close()
    return file.read(), file.name == f"{at}/f", file.mode


def _walked(g: Any, at: str, in_order: bool) -> Any:
    rows = [(top.removeprefix(at), sorted(dirs), sorted(files)) for top, dirs, files in g.Walk(at, in_order)]
    tops = [row[0] for row in rows]
    return tops.index("/d") < tops.index("/d/e"), tops.index("") < tops.index("/d"), sorted(rows)


def _listed(g: Any, at: str, *patterns: str) -> Any:
    found = g.Glob([f"{at}/{each}" for each in patterns])
    return sorted(path.partition(at.rpartition("/")[2])[2] for path in found)


def _changed(name: str, *paths: Any) -> Callable[[Any, str], Any]:
    """Call a function, and return the files and folders that there are then."""

    def use(g: Any, at: str) -> Any:
        getattr(g, name)(*(f"{at}/{path}" if isinstance(path, str) else path for path in paths))
        return " ".join(sorted(f"{top.removeprefix(at)}/{name}" for top, _, files in g.Walk(at) for name in files))

    return use


def _on(name: str, path: str) -> Callable[[Any, str], Any]:
    return lambda g, at: getattr(g, name)(f"{at}/{path}")


_TREE: Final = [("", ["d", "empty"], ["f"]), ("/d", ["e"], [".h"]), ("/d/e", [], ["x"]), ("/empty", [], [])]
_ALL: Final = "/d/.h /d/e/x /f"
EVERYWHERE: Final[dict[str, Case]] = {
    "lines": (_lines, ("ab\n", 1, "b\n", ["cd\n"], "", [b"ab\n", b"cd\n"])),
    "seek from the end": (_sought, "cd\n"),
    "a closed file opens again": (_closed, ("ab\ncd\n", True, "r")),
    "write": (_written("w", "é", b"\n"), "é\n"),
    "append": (_written("a", "+"), "old+"),
    "read what was written": (_read_and_written, ("12", 2, 5, "345")),
    "nothing written": (_unwritten, False),
    "read nothing": (lambda g, at: g.GFile(f"{at}/n").read(), "NotFoundError"),
    "read a folder": (lambda g, at: g.GFile(f"{at}/d").read(), "FailedPreconditionError"),
    "read in w": (lambda g, at: g.GFile(f"{at}/new", "w").read(), "PermissionDeniedError"),
    "write in r": (lambda g, at: g.GFile(f"{at}/f").write("x"), "PermissionDeniedError"),
    "no such mode": (lambda g, at: g.GFile(f"{at}/f", "x"), "InvalidArgumentError"),
    "seek nowhere": (lambda g, at: g.GFile(f"{at}/f").seek(), "TypeError"),
    "seek from elsewhere": (lambda g, at: g.GFile(f"{at}/f").seek(0, 5), "InvalidArgumentError"),
    "exists": (lambda g, at: [g.Exists(f"{at}/{name}") for name in ("f", "d", "n", "f/x")], [True, True, False, False]),
    "is a folder": (lambda g, at: [g.IsDirectory(f"{at}/{name}") for name in ("f", "d", "n")], [False, True, False]),
    "list": (lambda g, at: sorted(g.ListDirectory(f"{at}/d")), [".h", "e"]),
    "list nothing": (_on("ListDirectory", "n"), "NotFoundError"),
    "list a file": (_on("ListDirectory", "f"), "NotFoundError"),
    "stat": (lambda g, at: (g.Stat(f"{at}/f").length, g.Stat(f"{at}/f").is_directory, g.Stat(f"{at}/d").is_directory),
             (6, False, True)),
    "stat nothing": (_on("Stat", "n"), "NotFoundError"),
    "walk": (lambda g, at: _walked(g, at, True), (True, True, _TREE)),
    "walk, inner folders first": (lambda g, at: _walked(g, at, False), (False, False, _TREE)),
    "walk nothing": (lambda g, at: list(g.Walk(f"{at}/n")), []),
    "glob": (lambda g, at: _listed(g, at, "*", "d/[^.]*"), ["/d", "/d/e", "/empty", "/f"]),
    "glob nothing": (lambda g, at: _listed(g, at, "n*", "n/*"), []),
    "make folders": (lambda g, at: (g.MakeDirs(f"{at}/a/b"), g.MakeDirs(f"{at}/a/b"), g.IsDirectory(f"{at}/a/b")),
                     (None, None, True)),
    "copy": (_changed("Copy", "f", "g"), _ALL + " /g"),
    "copy an empty file": (_changed("Copy", "d/.h", "g"), _ALL + " /g"),
    "copy nothing": (_changed("Copy", "n", "g"), "NotFoundError"),
    "copy onto a file": (_changed("Copy", "f", "d/e/x"), "AlreadyExistsError"),
    "copy over a file": (lambda g, at: (g.Copy(f"{at}/f", f"{at}/d/e/x", True), g.GFile(f"{at}/d/e/x").read()),
                         (None, "ab\ncd\n")),
    "copy a folder": (_changed("Copy", "d", "g"), "InvalidArgumentError"),
    "copy over a folder": (_changed("Copy", "f", "d", True), "FailedPreconditionError"),
    "rename": (_changed("Rename", "f", "g"), "/d/.h /d/e/x /g"),
    "rename nothing": (_changed("Rename", "n", "g"), "NotFoundError"),
    "rename onto a file": (_changed("Rename", "f", "d/e/x"), "AlreadyExistsError"),
    "rename over a file": (_changed("Rename", "f", "d/e/x", True), "/d/.h /d/e/x"),
    "remove": (_changed("Remove", "f"), "/d/.h /d/e/x"),
    "remove nothing": (_changed("Remove", "n"), "NotFoundError"),
    "remove a folder": (_changed("Remove", "d"), "FailedPreconditionError"),
    "remove all": (_changed("DeleteRecursively", "d"), "/f"),
    "remove all of nothing": (_changed("DeleteRecursively", "n"), "NotFoundError"),
}  # fmt: skip

# Cases that stores need not distinguish: they may have no folders.
LOCAL: Final[dict[str, Case]] = {
    "stat below a file": (_on("Stat", "f/x"), "FailedPreconditionError"),
    "seek before the start": (lambda g, at: g.GFile(f"{at}/f").seek(-1), "InvalidArgumentError"),
    "write below nothing": (lambda g, at: g.GFile(f"{at}/n/f", "w").write("x"), "NotFoundError"),
    "overwrite in r+": (_written("r+", "XY"), "XY"),
    "make an existing folder": (_changed("MkDir", "d"), _ALL),
    "make a folder below nothing": (_changed("MkDir", "n/m"), "NotFoundError"),
    "make folders over a file": (_changed("MakeDirs", "f"), "FailedPreconditionError"),
    "make folders below a file": (_changed("MakeDirs", "f/x"), "FailedPreconditionError"),
    "copy into nothing": (_changed("Copy", "f", "n/f"), "NotFoundError"),
    "rename a folder": (_changed("Rename", "d", "k"), "/f /k/.h /k/e/x"),
    "rename over a folder": (_changed("Rename", "f", "d", True), "FailedPreconditionError"),
    "remove all of a file": (_changed("DeleteRecursively", "f"), "/d/.h /d/e/x"),
}


def fill(g: Any, at: str) -> None:
    """Create the files of the cases in a folder."""
    for folder in ("d/e", "empty"):
        g.MakeDirs(f"{at}/{folder}")
    for name, content in (("f", "ab\ncd\n"), ("d/.h", ""), ("d/e/x", "x")):
        with g.GFile(f"{at}/{name}", "w") as file:
            file.write(content)


def outcome(case: Case, g: Any, at: str, errors: tuple[type[Exception], ...]) -> Any:
    """Return the result of a case, or the name of its error."""
    try:
        return case[0](g, at)
    except errors as error:
        return type(error).__name__
