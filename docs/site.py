"""Hooks for MkDocs: pages from files outside of docs/, and the reference.

Documents link to one another by their places in the repository, so that the links work there. Where a document has
another place on the site, the links are changed; a link to what is not on the site becomes plain text.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
BESIDE: Final = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/RESULTS*.md"]  # pages outside of docs/
_LINK: Final = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
# A chart in a light and a dark variant, as GitHub shows it.
_PICTURE: Final = re.compile(
    r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<text>[^"]*)" src="(?P<light>[^"]+)">\s*</picture>'
)
_CODE: Final = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)

_PUBLIC: Final = re.compile(r"^<!-- public: (?P<module>[\w.]+)(?:, (?P<which>[\w ]+))? -->$", re.MULTILINE)
_SHARED: Final = re.compile(
    r"<b><code>((?:<[^>]*>)?\w+,(?:</\w+>)?)</code></b>\s*\(<code>\(?((?:(?!</code>).)*?)\)?</code>\)"
)
FIRST: Final = ["aioflow.errors", "aioflow.config", "aioflow"]  # where links lead, if these have the name
INHERITING: Final = {"Session"}  # classes whose public methods are, in part, those of their bases


# -- files of the repository ------------------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for pattern in BESIDE:
        for path in sorted(ROOT.glob(pattern)):
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, content=path.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where documents are on the site, and put public names where they belong."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    def lead(found: re.Match[str]) -> str:
        return _led(found, page.file.src_uri, files)

    # MkDocs resolves the paths of Markdown's images only, and the theme shows the variant of the chosen scheme.
    pictures = _PICTURE.sub(r"![\g<text>](\g<light>#only-light) ![\g<text>](\g<dark>#only-dark)", markdown)
    changed = _PUBLIC.sub(_names, _LINK.sub(lead, _CODE.sub(keep, pictures)))
    return re.sub("\0(\\d+)\0", lambda found: kept[int(found[1])], changed)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put names together that share a line of `Attributes:`: griffe takes all but the first for a type."""
    return _SHARED.sub(r"<b><code>\1 \2</code></b>", html)


def _led(found: re.Match[str], uri: str, files: Files) -> str:
    target, _, anchor = found["target"].partition("#")
    if not target or re.match(r"[a-z]+:", target):
        return found[0]
    here = posixpath.dirname(_in_repository(uri))
    there = _on_site(posixpath.normpath(posixpath.join(here, target)))
    if files.get_file_from_path(there) is not None:
        way = posixpath.relpath(there, posixpath.dirname(uri) or ".")
        text = _title(there) if found["text"].endswith(".md") else found["text"]
        return f"[{text}]({way}{'#' + anchor if anchor else ''})"
    if (ROOT / there).exists():
        return found["text"]  # a file of the repository
    return found[0]  # for MkDocs to complain about


def _title(uri: str) -> str:
    """Return the title of a page on the site."""
    heading = (ROOT / _in_repository(uri)).read_text(encoding="utf-8").partition("\n")[0]
    return heading.removeprefix("# ")


def _in_repository(uri: str) -> str:
    return uri if (ROOT / uri).exists() else f"docs/{uri}"


def _on_site(path: str) -> str:
    return path.removeprefix("docs/")


# -- the reference ----------------------------------------------------------------------------------------------------


def _names(found: re.Match[str]) -> str:
    """Return the public names of a module, each with its directive for mkdocstrings."""
    module = importlib.import_module(found["module"])
    names = [each for each in module.__all__ if not isinstance(getattr(module, each), ModuleType)]
    families: dict[str, list[str]] = {}
    for each in names:
        families.setdefault(_family(getattr(module, each)) if found["which"] else "", []).append(each)
    of_none = families.pop("", [])
    if found["which"] != "ops by family":
        return "\n".join([_first_paragraph(module), "", *_entries(module, of_none)])
    lines: list[str] = []
    for family, members in sorted(families.items()):
        title = _first_paragraph(importlib.import_module(family)).rstrip(".")
        lines += [f"## {title}", "", *_entries(module, members)]
    return "\n".join(lines)


def _first_paragraph(module: ModuleType) -> str:
    return (inspect.getdoc(module) or "").partition("\n\n")[0].replace("\n", " ")


def _family(value: Any) -> str:
    """Return the package of ops that defines a name; "" if it is not an op."""
    if not (isinstance(value, type) or inspect.isfunction(value)):
        return ""
    parts = (value.__module__ or "").split(".")
    return ".".join(parts[:3]) if parts[:2] == ["aioflow", "ops"] and len(parts) > 3 else ""


def _entries(module: ModuleType, names: Iterable[str]) -> Iterator[str]:
    """For each a line that has mkdocstrings show the object where it is defined; other values in a list behind them."""
    values: list[str] = []
    shown: dict[str, str] = {}
    for name in names:
        home = _home(getattr(module, name))
        if not home:
            values.append(f"`{name}`")
            continue
        yield from (f'<a id="{module.__name__}.{name}"></a>', "")
        if home in shown:
            yield from (f"### {name}", "", f"Another name of `{shown[home]}`.", "")
            continue
        shown[home] = name
        yield from (f"::: {home}", "    options:", f"      heading: {name}", f"      toc_label: {name}")
        yield f"      inherited_members: {str(name in INHERITING).lower()}"
        yield from (f"      skip_local_inventory: {str(_first_places()[home] != module.__name__).lower()}", "")
    if values:
        yield from ("### Values", "", ", ".join(values), "")


def _home(value: Any) -> str:
    """Return the dotted name under which a class or function of aioflow is defined; "" for other values."""
    home = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    return home if home.startswith("aioflow.") and (isinstance(value, type) or inspect.isfunction(value)) else ""


@functools.cache
def _first_places() -> Mapping[str, str]:
    """For each object the namespace where links lead, of those that have it."""
    places: dict[str, str] = {}
    pages = "".join(page.read_text(encoding="utf-8") for page in sorted(ROOT.glob("docs/reference/*.md")))
    found = dict.fromkeys([*FIRST, *(each["module"] for each in _PUBLIC.finditer(pages))])
    for module in map(importlib.import_module, found):
        for name in module.__all__:
            places.setdefault(_home(getattr(module, name)), module.__name__)
    return places
