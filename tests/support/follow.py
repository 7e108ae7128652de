"""A reader of a documentation page, which saves files, pastes blocks and types commands.

The output is compared with the page: words exactly, numbers approximately, and `…` matches anything.

    ```python title="train.py"      a file, saved under that name
    ```python                       pasted into `python -m asyncio`, one prompt for a page
    ```sh                           typed, line by line; servers run until the page ends
    ```text                         output of the block before
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib.util
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

import aioflow as af
from tests.support.processes import SECONDS, end, start

__all__ = ["Block", "Reader", "agrees", "blocks", "missing_packages"]

ROOT: Final = Path(__file__).resolve().parents[2]
_FENCE: Final = re.compile(
    r'^```(?P<language>[\w-]*)(?: title="(?P<title>[^"]+)")?[^\n]*\n(?P<code>.*?)^```[ \t]*$', re.MULTILINE | re.DOTALL
)
_NUMBER: Final = re.compile(r"\d+(?:\.\d*)?(?:e[-+]?\d+)?")
_ADDRESS: Final = re.compile(r"(?<=127\.0\.0\.1:)\d+|(?<=--port )\d+")
_INSTALLS: Final = ("pip install", "python3 -m venv", ". .venv")
_SERVERS: Final = ("uvicorn ", "aioflow serve ", "python -m aioflow.worker ")
_SERVES: Final = (" serves at ", "Uvicorn running on ", " is ready")
# They need TensorFlow: tests/parity runs the first, and the page ports the second.
_NOT_RUN: Final = ("before.py", "mean.py")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its line, language, title and text."""

    line: int
    language: str
    title: str
    code: str


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, found.start()) + 2, found["language"], found["title"] or "", found["code"])
        for found in _FENCE.finditer(text)
    ]


def missing_packages(page: Path) -> set[str]:
    """Return the modules that the programs of a page import and that are not installed."""
    found = blocks(page)
    names = {
        name
        for block in found
        if block.language == "python" and block.title not in _NOT_RUN
        for node in ast.walk(compile(block.code, str(page), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        for name in _imported(node)
    }
    if any(block.language == "sh" and "aioflow serve " in block.code for block in found):
        names |= {"httptools", "prometheus_client", "starlette", "uvicorn"}
    own = {path.stem for path in ROOT.joinpath("docs").rglob("*.md") for path in map(Path, _titles(path))}
    return {name for name in names if name.partition(".")[0] not in own and not _is_installed(name)}


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is not installed
        return False


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def _titles(page: Path) -> list[str]:
    return [block.title for block in blocks(page) if block.title]


def agrees(shown: str, printed: str) -> bool:
    """Return True if the output looks as the page shows it."""
    shown, printed = (" ".join(text.split()) for text in (shown, printed))
    pattern, numbers, at = "", [], 0
    for found in re.finditer(rf"…|{_NUMBER.pattern}", shown):
        pattern += re.escape(shown[at : found.start()])
        at = found.end()
        if found[0] == "…" or shown[at : at + 1] == "…":
            pattern += r".*?" if found[0] == "…" else re.escape(found[0])
            continue
        pattern += f"({_NUMBER.pattern})"
        numbers.append(float(found[0]))
    matched = re.fullmatch(pattern + re.escape(shown[at:]), printed)
    return matched is not None and all(
        float(have) == pytest.approx(want, rel=1e-3, abs=1e-6)
        for have, want in zip(matched.groups(), numbers, strict=True)
    )


@dataclass
class Reader:
    """A reader that starts with an empty folder and follows pages.

    Attributes:
        folder: Where files are saved and programs run.
        ports: A free port for each port that a page names, so that several tests may follow it at the same time.
    """

    folder: Path
    ports: dict[str, str] = field(default_factory=dict)
    _services: list[subprocess.Popen[Any]] = field(default_factory=list)

    async def follow(self, page: Path) -> None:
        """Follow a page from its first block to its last.

        Raises:
            AssertionError: a block fails or prints something else; the message has its line.
        """
        names: dict[str, Any] = {"__name__": "__main__"}
        printed = ""
        try:
            with af.Graph().as_default():
                for block in blocks(page):
                    where = f"{page.name}:{block.line}"
                    if block.language == "text":
                        assert agrees(self._here(block.code), printed), f"{where} is not what was printed:\n{printed}"
                    elif block.title:
                        (self.folder / block.title).write_text(self._here(block.code), encoding="utf-8")
                    elif block.language == "python":
                        printed = await self._paste(block, page, names)
                    elif block.language == "sh":
                        lines = self._here(block.code).splitlines()
                        printed = "".join([await asyncio.to_thread(self._type, line, where) for line in lines])
        finally:
            for service in self._services:
                end(service)
            self._services.clear()

    def _here(self, text: str) -> str:
        """Replace the ports of the page with free ones."""
        return _ADDRESS.sub(lambda found: self.ports.setdefault(found[0], _free_port()), text)

    async def _paste(self, block: Block, page: Path, names: dict[str, Any]) -> str:
        # Blank lines before the block give errors the line numbers of the page.
        shifted = "\n" * (block.line - 1) + self._here(block.code)
        code = compile(shifted, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(io.StringIO()) as out:
            async with asyncio.timeout(SECONDS):
                coroutine = eval(code, names)
                if coroutine is not None:
                    await coroutine
        return out.getvalue()

    def _type(self, line: str, where: str) -> str:
        """Run a command and return its output. Start a server and wait until it is ready."""
        if not line or line.startswith(_INSTALLS):
            return ""
        environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
        if line.startswith(_SERVERS):
            self._serve(line, environment, where)
            return ""
        if line.startswith("curl ") and shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        command = ["sh", "-c", line]
        if line.startswith("python "):
            command = [sys.executable, "-W", "error", *line.split()[1:]]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
        )
        assert done.returncode == 0, f"{where}: {line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _serve(self, line: str, environment: dict[str, str], where: str) -> None:
        words = line.split()
        arguments = words[1:] if words[0] == "python" else ["-m", *words]
        service = start(
            *arguments,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._services.append(service)
        assert service.stdout is not None
        seen = ""
        for printed in service.stdout:
            seen += printed
            if any(sign in printed for sign in _SERVES):
                break
        else:
            raise AssertionError(f"{where}: {line}\n{seen}")
        threading.Thread(target=_read_all, args=[service.stdout], daemon=True).start()


def _read_all(lines: Iterator[str]) -> None:
    """Read all lines, so that the service never waits for room in the pipe."""
    with contextlib.suppress(ValueError):  # closed by then
        for _ in lines:
            pass


def _free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])
