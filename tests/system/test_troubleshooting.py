"""Tests that each program of docs/troubleshooting.md ends with the message that the page shows for it."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

import aioflow as af
from tests.support.follow import Block, agrees, blocks
from tests.support.processes import SECONDS

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
ABSENT: Final = {"onnxruntime is not installed\n": "onnxruntime"}  # the packages that a message misses


def _cases() -> list[Any]:
    found = blocks(PAGE)
    for code, message in zip(found[::2], found[1::2], strict=True):
        assert (code.language, message.language) == ("python", "text"), f"{PAGE.name}:{code.line}"
    pairs = zip(found[::2], found[1::2], strict=True)
    return [pytest.param(code, message.code, id=message.code.strip()) for code, message in pairs]


async def _run(program: Block, names: dict[str, Any]) -> None:
    shifted = "\n" * (program.line - 1) + program.code
    coroutine = eval(compile(shifted, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if coroutine is not None:
        async with asyncio.timeout(SECONDS):
            await coroutine


@pytest.mark.parametrize(("program", "message"), _cases())
async def test_program_ends_with_the_message(
    program: Block, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if message in ABSENT:
        monkeypatch.setitem(sys.modules, ABSENT[message], None)
    names: dict[str, Any] = {"af": af, "asyncio": asyncio}
    with af.Graph().as_default():
        with pytest.raises((af.errors.OpError, AttributeError, TypeError)) as caught:
            await _run(program, names)
        for value in names.values():
            if isinstance(value, af.Session):
                await value.close()
            elif isinstance(value, af.train.Server):
                await value.stop()
            elif asyncio.iscoroutine(value):
                value.close()  # or Python warns that it was never awaited
    error = caught.value
    printed = error.message if isinstance(error, af.errors.OpError) else str(error)
    assert agrees(message, printed), printed


def test_each_section_shows_its_message_and_its_fix() -> None:
    _, *sections = re.split(
        r"^### ", PAGE.read_text(encoding="utf-8").partition("\n## Still stuck")[0], flags=re.MULTILINE
    )
    assert len(sections) >= 20
    for section in sections:
        title, _, rest = section.partition("\n")
        assert "**Cause:**" in rest, title
        assert "**Fix:**" in rest, title
        shown = re.search(r"^```text\n(.*?)^```$", rest, re.MULTILINE | re.DOTALL)
        if shown is not None and "never awaited" not in title:
            assert all(part.strip() in shown[1] for part in title.split("…")), title


def test_address_in_use_is_reported(tmp_path: Path) -> None:
    with contextlib.closing(_listener()) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, "-m", "aioflow", "serve", f"m={tmp_path}", "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 2
    assert "Address already in use" in done.stderr


def _listener() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener
