"""Hooks for MkDocs: pages from files outside of docs/, and the reference.

Documents link to one another by their places in the repository, so that the links work there. Where a document has
another place on the site, the links are changed; a link to what is not on the site becomes plain text.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import posixpath
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.structure.toc import AnchorLink

ROOT: Final = Path(__file__).resolve().parents[1]
BESIDE: Final = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/RESULTS*.md"]  # pages outside of docs/
_LINK: Final = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
# A chart in a light and a dark variant, as GitHub shows it.
_PICTURE: Final = re.compile(
    r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<text>[^"]*)" src="(?P<light>[^"]+)">\s*</picture>'
)
# The theme loads the script of diagrams from this address, when a page has one.
_MERMAID: Final = '"https://unpkg.com/mermaid@11/dist/mermaid.min.js"'
_CODE: Final = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)

_PLACED: Final = re.compile(r'<a id="(aioflow[\w.]*):"></a>')  # which namespace the names after it are those of
_ANCHOR: Final = re.compile(r'((?<=\s)(?:id|href)="#?)(aioflow\.[\w.]+)')
_SAID: Final = re.compile(r"\s+The\s+documentation\s+site\s+lists\s+the\s+names\s+here,\s+with\s+their\s+docstrings\.")
_PUBLIC: Final = re.compile(r"^<!-- public: (?P<module>[\w.]+)(?:, (?P<which>[\w ]+))? -->$", re.MULTILINE)
_SHARED: Final = re.compile(
    r"<b><code>((?:<[^>]*>)?\w+,(?:</\w+>)?)</code></b>\s*\(<code>\(?((?:(?!</code>).)*?)\)?</code>\)"
)
WIDE: Final = {"comparison.md"}  # pages with a table that needs the width of the table of contents
_HERO: Final = """\
<div class="hero" markdown>

![](pictures/logo.svg){ width="88" }

# aioflow

Models inside your asyncio program: awaited, batched, and out of the event loop's way.
{ .hero-line }

[Quickstart](quickstart.md){ .md-button .md-button--primary } [Comparison](comparison.md){ .md-button }

</div>
"""
FIRST: Final = ["aioflow.errors", "aioflow.config", "aioflow"]  # where links lead, if these have the name
INHERITING: Final = {"Session"}  # classes whose public methods are, in part, those of their bases
# The order in which a namespace with many names shows them: by topic, and in a topic by these patterns.
TOPICS: Final[Mapping[str, Mapping[str, str]]] = {
    "aioflow": {
        "Sessions": "Session SessionConfig RunOptions TraceLevel RunMetadata Padding get_default_session list_devices "
        "DeviceAttributes ConfigProto GPUOptions GraphOptions OptimizerOptions",
        "Graphs": "Graph Operation get_default_graph reset_default_graph placeholder* constant convert_to_tensor "
        "register_tensor_conversion_function identity* group tuple no_op stop_gradient",
        "Tensors, shapes and dtypes": "Tensor TensorShape Dimension IndexedSlices DType as_dtype",
        "Scopes, devices and collections": "name_scope op_scope init_scope control_dependencies device DeviceSpec "
        "colocate_with container compressed GraphKeys *collection*",
        "Gradients": "gradients hessians AggregationMethod UnconnectedGradients custom_gradient *rad* recompute_grad "
        "NotDifferentiable",
        "Graphs as data": "GraphDef NodeDef MetaGraphDef import_graph_def",
        "Events": "Event Summary* HistogramProto LogMessage SessionLog",
        "More": "*",
    },
    "aioflow.train": {
        "Optimizers": "Optimizer GradientDescentOptimizer MomentumOptimizer AdamOptimizer *Optimizer",
        "Learning rates, steps and averages": "piecewise_constant *_decay* *global_step* ExponentialMovingAverage",
        "Monitored sessions": "MonitoredTrainingSession MonitoredSession *Session Scaffold SessionRun* *Hook *Listener "
        "SessionManager *Creator Supervisor *Timer NanLoss* CheckpointedInput InputSource SeekableFeeds",
        "Checkpoints and graphs": "Saver *Saver* *heckpoint* *_variable* *graph",
        "Input queues": "Coordinator QueueRunner *queue_runner* *_producer *batch* limit_epochs match_filenames_once",
        "Records": "Example SequenceExample Feature* *List",
        "Servers and devices": "Server ClusterSpec *setter* *Strategy byte_size_load_fn",
        "More": "*",
    },
}


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
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
        markdown = _HERO + markdown.partition("next.\n")[2]
    elif page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    def lead(found: re.Match[str]) -> str:
        return _led(found, page.file.src_uri, files)

    # MkDocs resolves the paths of Markdown's images only, and the theme shows the variant of the chosen scheme.
    pictures = _PICTURE.sub(r"![\g<text>](\g<light>#only-light) ![\g<text>](\g<dark>#only-dark)", markdown)
    pictures = _SAID.sub("", pictures) if "<!-- public: " in pictures else pictures
    changed = _PUBLIC.sub(_names, _LINK.sub(lead, _CODE.sub(keep, pictures)))
    return re.sub("\0(\\d+)\0", lambda found: kept[int(found[1])], changed)


@event_priority(100)  # before the search and the links take the anchors from the page
def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put names together that share a line of `Attributes:`: griffe takes all but the first for a type.

    Anchors get public names.
    """
    html = _SHARED.sub(r"<b><code>\1 \2</code></b>", html)
    modules = [found[1] for found in _PLACED.finditer(html)]
    if not modules:
        return html
    names = _public_names(modules)
    html = _PLACED.sub("", html)
    for entry in _entries_of(page.toc.items):
        entry.id = _public(entry.id, names)
    return _ANCHOR.sub(lambda found: f"{found[1]}{_public(found[2], names)}", html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Let links lead to the public anchors."""
    names = _public_names(_modules())
    return re.sub(r'(href="[^"]*#)(aioflow\.[\w.]+)', lambda found: f"{found[1]}{_public(found[2], names)}", output)


def on_post_build(config: MkDocsConfig) -> None:
    """Let the inventory, from which other sites link to this one, have the public names. Add mermaid."""
    _add_mermaid(config)
    file = Path(config.site_dir) / "objects.inv"
    *head, packed = file.read_bytes().split(b"\n", 4)
    names = _public_names(_modules())
    lines = re.sub(
        r"(?<![\w.])aioflow\.[\w.]+", lambda found: _public(found[0], names), zlib.decompress(packed).decode()
    )
    file.write_bytes(b"\n".join([*head, zlib.compress(lines.encode(), 9)]))


def _add_mermaid(config: MkDocsConfig) -> None:
    """Load mermaid from a copy, so that the site works offline. `MERMAID_PACKAGE` is the path of its npm package.

    Raises:
        PluginError: the theme loads mermaid from another address.
    """
    package = os.environ.get("MERMAID_PACKAGE")
    if not package:
        return
    scripts = Path(config.site_dir) / "assets" / "javascripts"
    (bundle,) = scripts.glob("bundle.*.min.js")
    text = bundle.read_text(encoding="utf-8")
    if _MERMAID not in text:
        raise PluginError(f"{bundle.name} does not contain {_MERMAID}: adapt docs/site.py to this version of the theme")
    with tarfile.open(package) as files, files.extractfile("package/dist/mermaid.min.js") as script:
        (scripts / "mermaid.min.js").write_bytes(script.read())
    here = """new URL("mermaid.min.js",document.querySelector("script[src*='javascripts/bundle.']").src).href"""
    bundle.write_text(text.replace(_MERMAID, here), encoding="utf-8")


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
    placed = f'<a id="{module.__name__}:"></a>'
    for each in names:
        families.setdefault(_family(getattr(module, each)) if found["which"] else "", []).append(each)
    of_none = families.pop("", [])
    if found["which"] != "ops by family":
        return "\n".join([_first_paragraph(module), "", placed, "", *_by_topic(module, of_none)])
    lines: list[str] = [placed, ""]
    for family, members in sorted(families.items()):
        title = _first_paragraph(importlib.import_module(family)).rstrip(".")
        lines += [f"## {title}", "", *_entries(module, members)]
    return "\n".join(lines)


def _by_topic(module: ModuleType, names: list[str]) -> Iterator[str]:
    topics = TOPICS.get(module.__name__)
    if topics is None:
        yield from _entries(module, names)
        return
    left = dict.fromkeys(names)
    for title, patterns in topics.items():
        found = [name for pattern in patterns.split() for name in left if fnmatchcase(name, pattern)]
        found = list(dict.fromkeys(found))
        for name in found:
            del left[name]
        yield from (f"## {title}", "", *_entries(module, found))


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
        if home in shown:
            yield from (f"### {name} {{ #{module.__name__}.{name} }}", "", f"Another name of `{shown[home]}`.", "")
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
    for module in map(importlib.import_module, _modules()):
        for name in module.__all__:
            places.setdefault(_home(getattr(module, name)), module.__name__)
    return places


@functools.cache
def _modules() -> tuple[str, ...]:
    """Return the namespaces of the reference, the one where links lead first."""
    pages = "".join(page.read_text(encoding="utf-8") for page in sorted(ROOT.glob("docs/reference/*.md")))
    return tuple(dict.fromkeys([*FIRST, *(each["module"] for each in _PUBLIC.finditer(pages))]))


def _public_names(modules: Iterable[str]) -> Mapping[str, str]:
    """Return the public name of each object of these namespaces, by the name under which it is defined."""
    names: dict[str, str] = {}
    for module in map(importlib.import_module, modules):
        for name in module.__all__:
            names.setdefault(_home(getattr(module, name)), f"{module.__name__}.{name}")
    return names


def _public(name: str, names: Mapping[str, str]) -> str:
    """Return the public name of an object or of its member; the name itself for others."""
    at = len(name)
    while at > 0:
        if name[:at] in names:
            return names[name[:at]] + name[at:]
        at = name.rfind(".", 0, at)
    return name


def _entries_of(toc: Iterable[AnchorLink]) -> Iterator[AnchorLink]:
    for entry in toc:
        yield entry
        yield from _entries_of(entry.children)
