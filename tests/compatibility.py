"""The generated tables of docs/compatibility.md; `python -m tests.compatibility` writes them anew.

The text between two markers is generated; the text outside is written by hand and stays unchanged.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

import aioflow as af
from aioflow.loading.tensorflow_names import INSTEAD, MODULES, NAMES
from tests.test_public_names import DIFFERENT

__all__ = ["DOCUMENT", "tables", "written"]

DOCUMENT: Final = Path(__file__).resolve().parents[1] / "docs/compatibility.md"
_BLOCK: Final = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def tables() -> Mapping[str, str]:
    """Return the generated blocks, by name."""
    return {"summary": "".join(_summary()), "modules": "".join(_modules())}


def written(text: str) -> str:
    """Return the document with its generated blocks replaced."""
    made = tables()
    return _BLOCK.sub(lambda found: f"{found[1]}\n{made[found[2]]}\n{found[3]}", text)


def _summary() -> Iterator[str]:
    yield "| module | names | there | missing | use instead |\n|---|---|---|---|---|\n"
    total = [0, 0]
    for module, names in _names().items():
        there = _there(module) & names
        total[0] += len(names)
        total[1] += len(there)
        instead = INSTEAD.get(module, "")
        yield f"| `{_title(module)}` | {len(names)} | {len(there)} | {len(names) - len(there)} | {instead} |\n"
    yield f"| together | {total[0]} | {total[1]} | {total[0] - total[1]} | |\n"
    absent = [name for name in MODULES.split() if name not in NAMES and name not in af.__all__]
    yield "\n" + _paragraph(f"Modules that are missing, and are not listed below: {_listed(absent)}")


def _modules() -> Iterator[str]:
    for module, names in _names().items():
        there = _there(module) & names
        yield f"### `{_title(module)}`\n\n"
        if not there:
            yield _paragraph(f"The module is missing: {_listed(names)}") + "\n"
            continue
        if names - there:
            yield _paragraph(f"Missing: {_listed(names - there)}") + "\n"
        differing = {key: why for key, why in DIFFERENT.items() if key.rpartition(".")[0] == module}
        if differing:
            yield "Other arguments:\n\n"
            yield "".join(f"- `{key.rpartition('.')[2]}`: {why}\n" for key, why in sorted(differing.items())) + "\n"
        yield "<details><summary>There</summary>\n\n" + _paragraph(_listed(there)) + "\n</details>\n\n"


def _names() -> Mapping[str, set[str]]:
    return {module: set(names.split()) for module, names in NAMES.items()}


def _title(module: str) -> str:
    """Return the name of a module in aioflow, or in TensorFlow if aioflow does not have it."""
    return f"{'aioflow' if _there(module) else 'tf'}.{module}".rstrip(".")


def _there(module: str) -> set[str]:
    found: object = af
    for name in filter(None, module.split(".")):
        found = getattr(found, name, None)
    return set(found.__all__) if isinstance(found, ModuleType) else set()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names, key=lambda name: (name.lower(), name))) + "."


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
