"""`python tests/wording.py [path …]`: find phrases in docstrings and comments that plain technical English avoids.

ruff's pydocstyle rules check the form of docstrings; this checks their words. `tox -e lint` runs both.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

PHRASES: Final = {
    r"nobody|no one": "name the caller, client or process, or use the passive",
    r"somebody|someone|anybody|everybody|whoever|whomever|he who|(?:one|ones) who(?:se)?": "name the caller or process",
    r"(?-i:he)|him|his|himself|she|her": "a process, caller or connection is 'it'",
    r"(?-i:(?:is|are) none)": "reads as `is None`: write 'has no …' or 'is not a …'",
}
OPENINGS: Final = (
    *("What", "Whatever", "Whether", "How", "Who", "Whose", "Those", "That"),
    *("As", "Of", "Where", "Which", "When", "None", "Nothing"),
)
SOURCES: Final = ("aioflow", "backends", "benchmarks", "docs", "examples", "tests")
_PATTERNS: Final = {re.compile(rf"\b(?:{text})\b", re.IGNORECASE): advice for text, advice in PHRASES.items()}
_QUOTED: Final = re.compile(r"`[^`]*`|\"[^\"\n]*\"|'[^'\n]*'")


class Finding(NamedTuple):
    """A phrase to replace."""

    line: int
    phrase: str
    advice: str


def findings(source: str) -> Iterator[Finding]:
    """Yield what is to be replaced in the docstrings and comments of a module."""
    for line, text in docstrings(source):
        first = text.split(maxsplit=1)[:1]
        if first and first[0] in OPENINGS:
            yield Finding(line, first[0], "begin with a verb (functions) or a noun (classes, modules, properties)")
        yield from _phrases(line, text)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _phrases(token.start[0], token.string)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield each docstring with the number of its first line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                yield node.body[0].lineno, text


def _phrases(line: int, text: str) -> Iterator[Finding]:
    plain = _QUOTED.sub(lambda quoted: " " * len(quoted[0]), text)
    for pattern, advice in _PATTERNS.items():
        for found in pattern.finditer(plain):
            yield Finding(line + plain.count("\n", 0, found.start()), found[0], advice)


def main(paths: list[str]) -> int:
    """Print the findings in these files and folders. Return 1 if there are any."""
    root = Path(__file__).parent.parent
    status = 0
    for place in [Path(path) for path in paths] or [root / name for name in SOURCES]:
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            if file == Path(__file__):
                continue
            for found in findings(file.read_text("utf-8")):
                print(f"{file}:{found.line}: {found.phrase!r}: {found.advice}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
