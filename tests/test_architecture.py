"""Architecture rules, checked on the source: layers, import cycles, sizes, and calls that the library never makes.

docs/architecture.md describes the layers. Each rule is a function from the modules to its findings. A rule that looks
at nothing finds nothing and would pass. So each rule also runs on small wrong programs (`WRONG`), and the number of
modules read has a lower bound.
"""

from __future__ import annotations

import ast
import gc
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Final, TypeAlias

import pytest

from aioflow.graph.boundary import ARG, RECV, RETVAL, SEND
from aioflow.graph.opdef import OPS, traits_of
from aioflow.graph.traits import Role
from aioflow_numpy.namespace import OTHERS
from tests.measures import private_accesses
from tests.support.source_modules import Module, Modules, imported, parse, read_tree

# Imports point downhill: a module imports from lower ranks, and from its own rank only within its own package. The key
# is the second part of the module's name ("" is aioflow/__init__.py). A module that is not listed fails `ranks`.
RANKS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("errors", "release"), 0),
    **dict.fromkeys(("arguments",), 1),
    **dict.fromkeys(("concurrency", "config"), 2),
    **dict.fromkeys(("memory",), 3),
    **dict.fromkeys(("loading", "protos"), 4),
    **dict.fromkeys(("graph",), 5),
    **dict.fromkeys(("formats", "sync"), 6),
    **dict.fromkeys(("ops",), 7),
    **dict.fromkeys(("kernels", "autodiff"), 8),
    **dict.fromkeys(("compiler",), 9),
    **dict.fromkeys(("runtime",), 10),
    **dict.fromkeys(("net", "observe"), 11),
    **dict.fromkeys(("session",), 12),
    **dict.fromkeys(("data", "train", "distributed"), 13),
    **dict.fromkeys(("interop",), 14),
    **dict.fromkeys(("saved", "web"), 15),
    **dict.fromkeys(("flags", "serve"), 16),
    # Public namespaces, which re-export names, and entry points.
    **dict.fromkeys(
        ("", "nn", "math", "bitwise", "debugging", "layers", "linalg", "lookup", "random", "losses", "initializers"), 17
    ),
    **dict.fromkeys(("control_flow_ops", "metrics", "mixed_precision", "summary", "tensor_util"), 17),
    **dict.fromkeys(("graph_util", "manip", "python_io", "queue", "spectral"), 17),
    **dict.fromkeys(
        ("dtypes", "io", "raw_ops", "extend", "strings", "signal", "sparse", "image", "traits", "typing"), 17
    ),
    **dict.fromkeys(("app", "gfile", "logging", "resource_loader"), 17),
    **dict.fromkeys(("__main__", "cli", "demo", "worker", "testing"), 17),
}
TOP: Final = max(RANKS.values())
# A backend may import the engine up to the runtime, which has its devices, but nothing above.
BACKEND_RANK: Final = RANKS["runtime"] + 1

# A package of kernels for another backend's device may import that backend too.
KERNEL_PACKAGES: Final = ("aioflow_onednn",)
# An engine that computes parts of steps may import the modules that translate graphs for it.
ENGINES: Final = ("aioflow_onnxruntime",)
ENGINE_RANK: Final = RANKS["interop"] + 1
BACKENDS: Final = ("aioflow_numpy", "aioflow_cupy", *KERNEL_PACKAGES, *ENGINES)
BACKEND_NAMES: Final = ("numpy", "cupy", "onednn", "onnxruntime")  # names of their entry points
BACKEND_LIBRARIES: Final = ("cupy", "cupyx")
REPORTS_VERSIONS: Final = "aioflow.cli.doctor"
DOOR: Final = ("aioflow_numpy.products", "aioflow_numpy.crew", "aioflow_numpy.namespace")
# CuPy calls no BLAS of the host. The tools use NumPy as the oracle.
BESIDE_THE_DOOR: Final = ("aioflow_cupy", "aioflow.testing")
_BLAS: Final = "|".join(("dot", "einsum", "matmul", "linalg", *OTHERS))
BLAS_NAME: Final = re.compile(rf"^(np|numpy)\.({_BLAS})$|^(?!xp\.|products\.|(.*\.)xp\.).*\.(dot|multivariate_normal)$")
BLAS_IMPORT: Final = re.compile(rf"^from numpy import .*\b({_BLAS})\b|numpy\.(linalg|matlib)")
BLAS_LIBRARY: Final = re.compile(r"scipy(?!\.special\b)(\.\w+)*")  # scipy.special calls no BLAS
LIBRARIES: Final = ast.Import | ast.ImportFrom | ast.Constant
FILE_LIBRARIES: Final = ("fsspec", "glob", "mmap", "pathlib", "shutil", "sqlite3", "tempfile")
FILE_CALL: Final = re.compile(
    r"^(io\.)?open$|^os\.(?!fsencode|fsdecode|fspath|urandom|cpu_count|environ)|^(np|numpy)\.(load|save|savez|\w+txt)$"
    r"|(^|\.)(Path|fromfile|tofile|memmap|open_memmap|(read|write)_(text|bytes))$"
)
# Functions and classes of `formats` that open a file by name.
TAKES_FOLDERS: Final = (
    *(
        "CheckpointReader",
        "write_checkpoint",
        "write_bundle",
        "read_whole",
        "write_whole",
        "store_of",
        "store_at",
        "Folder",
    ),
    *("WholeFile", "TextLines", "TFRecords", "FixedLengthRecords", "RecordFile", "open_stream", "TensorFile"),
)
BUILDS: Final = "aioflow.ops.apply"  # all builders of ops import it
PRINTS: Final = ("aioflow.cli", "aioflow.__main__", "aioflow.demo", "aioflow.worker")

KERNEL_FILES: Final = (  # in addition to modules that register kernels
    "aioflow_numpy.block_functions",
    "aioflow_numpy.fused_blocks",
    "aioflow_onednn.epilogues",
    "aioflow_onednn.layer_kernels",
)
# The op of a node, in a comparison.
OP_OF_NODE: Final = re.compile(r"\b(op|type|op_type)\b")
# Modules that map ops of other programs, or of older versions, to ops of aioflow.
TRANSLATIONS: Final = ("aioflow.interop.", "aioflow.formats.graphs.older.")
# Modules that compare ops of nodes with names, beside the definitions and kernels: they know them from stored graphs.
READS_GRAPHS: Final = (
    "aioflow.interop.",
    "aioflow.formats.graphs.",
    "aioflow.saved.",  # variables and placeholders of stored models
    "aioflow.train.saver_nodes",  # the nodes of a stored saver
)
# Modules that compare them with names of kernels' ops, as patterns of rewrites. They know control flow and constants by
# their roles.
REWRITES: Final = (
    "aioflow.compiler.optimize.",
    "aioflow.autodiff.branches_and_loops",  # the gradient replaces nodes that depend only on a shape
    "aioflow.compiler.delegate",  # nodes that run in an engine of their own already
)
# Collections of op names that hold no facts about ops: patterns of rewrite rules, samples, TensorFlow's public names.
PATTERNS: Final = frozenset(
    {
        "aioflow.data.vectorizing._RULES",
        "aioflow.compiler.optimize.arithmetic._RULES",
        "aioflow.compiler.optimize.fold_batch_norm._CONVOLUTIONS",
        "aioflow.compiler.optimize.fold_batch_norm._NORMS",
        "aioflow.compiler.optimize.fuse_bias._FUSED",
        "aioflow.compiler.optimize.fuse_bias._ADDED_TO",
        "aioflow.compiler.optimize.fuse_bias._ADDITIONS",
        "aioflow.compiler.optimize.fuse_bias._ACTIVATIONS",
        "aioflow.compiler.optimize.fuse_bias._SUMS",
        "aioflow.compiler.optimize.fuse_bias._SWISH",
        "aioflow.compiler.optimize.fuse_integers._FUSED",
        "aioflow.compiler.optimize.shapes._REDUCTIONS",
        "aioflow.compiler.optimize.shapes._RULES",
        "aioflow.compiler.optimize.shapes._VALUES",
        "aioflow.compiler.optimize.transposes._RULES",
        "aioflow.interop.onnx.exporting.types.KERNELS",
        "aioflow.formats.graphs.lowering._RULES",
        "aioflow.loading.tensorflow_names.NAMES",
        "aioflow.runtime.calibrate._RATES",
        "aioflow.testing.check_backend._KERNELS",
    }
)

# Public names of different namespaces, which users write with their module.
SHARED_NAMES: Final[Mapping[str, str]] = {
    "Check": "one check of a conformance suite: aioflow.testing.check_backend, check_comm, check_worker",
    "Factory": "makes the tested objects: aioflow.testing.check_comm, check_worker",
    "Limits": "aioflow.serve.Limits, and aioflow.net.limits.Limits for CommOptions",
    "Server": "aioflow.serve.Server, and TensorFlow's aioflow.train.Server",
}

MODULE_LINES, CLASS_LINES, FUNCTION_LINES = 700, 500, 60
LINE = 120  # characters

Rule: TypeAlias = Callable[[Modules], Iterator[str]]


# ── imports ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def imports(module: Module, modules: Modules) -> Iterator[tuple[ast.stmt, str]]:
    """Yield each import, with the module that it names: at the top level, in a function, or for type checkers only."""
    for node in module.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node, target) for target in imported(node, modules))


def ranks(modules: Modules) -> Iterator[str]:
    """Check that imports point downhill."""
    for module in modules.values():
        if module.in_core and module.area not in RANKS:
            yield f"{module.name}: give {module.area!r} a rank in tests/test_architecture.py"
            continue
        for node, target in imports(module, modules):
            if target in modules and not downhill(module, modules[target]):
                yield module.at(node, f"rank {rank(module)} imports {target} of rank {rank(modules[target])}")


def rank(module: Module) -> int:
    if module.in_core:
        return RANKS.get(module.area, TOP)
    return ENGINE_RANK if module.name.startswith(ENGINES) else BACKEND_RANK + module.name.startswith(KERNEL_PACKAGES)


def downhill(module: Module, target: Module) -> bool:
    if rank(module) != rank(target):
        return rank(target) < rank(module)
    # The top rank is one layer: the public names and the programs that use them.
    inside = target.name.startswith(module.name + ".")  # a package's __init__ re-exports names of its own modules
    return inside or rank(module) == TOP or package(module) == package(target)


def package(module: Module) -> str:
    """Return the folder that owns a module. The files directly in aioflow/ share one."""
    parts = module.name.split(".")
    return parts[0] if not module.in_core else parts[1] if len(parts) > 2 else ""


def ranks_exist(modules: Modules) -> Iterator[str]:
    """Check that every area with a rank has modules."""
    areas = {module.area for module in modules.values() if module.in_core}
    yield from (
        f"{area!r} has a rank in tests/test_architecture.py, and no module" for area in RANKS if area not in areas
    )


def cycles(modules: Modules) -> Iterator[str]:
    """Check that no module imports itself through others, not even inside functions or for type checkers."""
    edges = {name: {t for _, t in imports(module, modules) if t in modules} for name, module in modules.items()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> Iterator[str]:
        if name in path:
            yield " → ".join((*path[path.index(name) :], name))
        elif name not in done:
            for target in sorted(edges[name]):
                yield from visit(target, (*path, name))
            done.add(name)

    for name in modules:
        yield from visit(name, ())


def relative_imports(modules: Modules) -> Iterator[str]:
    """Check that there are no relative imports: the other rules read absolute names."""
    for module in modules.values():
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and node.level:
                yield module.at(node, "a relative import")


def core_names_no_backend(modules: Modules) -> Iterator[str]:
    """Check that no import and no string of the core names a backend: entry points provide them."""
    wanted = re.compile("|".join((*BACKENDS, *(f"^{name}$" for name in BACKEND_NAMES))))
    for module in modules.values():
        if not module.in_core:
            continue
        for node, target in imports(module, modules):
            if target.partition(".")[0] in (*BACKENDS, *BACKEND_LIBRARIES):
                yield module.at(node, f"the core imports {target}")
        for string in module.nodes:
            if module.name == REPORTS_VERSIONS and isinstance(string, ast.Constant) and string.value == "numpy":
                continue  # here "numpy" is the distribution
            if isinstance(string, ast.Constant) and isinstance(string.value, str) and wanted.search(string.value):
                yield module.at(string, f"the core names a backend: {string.value[:40]!r}")


# ── sizes and names ──────────────────────────────────────────────────────────────────────────────────────────────────


def sizes(modules: Modules) -> Iterator[str]:
    """Check the lengths of modules, classes, and functions without their docstrings."""
    for module in modules.values():
        lines = module.source.count("\n")
        if lines > MODULE_LINES:
            yield f"{module.name}: {lines} lines of at most {MODULE_LINES}"
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and length(node) > CLASS_LINES:
                yield module.at(node, f"class {node.name} has {length(node)} lines of at most {CLASS_LINES}")
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = length(node) - docstring_length(node)
                if lines > FUNCTION_LINES:
                    yield module.at(node, f"function {node.name} has {lines} lines of at most {FUNCTION_LINES}")


def length(node: ast.stmt | ast.expr) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def docstring_length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return 0 if ast.get_docstring(node) is None else length(node.body[0])


def drawers(modules: Modules) -> Iterator[str]:
    """Check that no module has a generic name such as `utils`."""
    for name in modules:
        for part in name.split("."):
            if re.fullmatch(r"_*(utils?|common|helpers?|misc)", part):
                yield f"{name}: name it after what it holds"


def class_names(modules: Modules) -> Iterator[str]:
    """Check that only one module defines a public class, or a type alias, of a name."""
    found: dict[str, str] = {}
    for module in modules.values():
        for node in module.tree.body:
            name = type_name(node)
            if name is None or name.startswith("_") or name in SHARED_NAMES:
                continue
            if name in found:
                yield module.at(node, f"{name} is also the name of a type in {found[name]}: say what it is here")
            found.setdefault(name, module.name)


def type_name(node: ast.stmt) -> str | None:
    """Return the name of the class or type alias that a statement defines."""
    if isinstance(node, ast.ClassDef):
        return node.name
    is_alias = isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias"
    return ast.unparse(node.target) if is_alias and isinstance(node, ast.AnnAssign) else None


def docstrings(modules: Modules) -> Iterator[str]:
    """Check that every module has a docstring."""
    for module in modules.values():
        if module.tree.body and not ast.get_docstring(module.tree):
            yield f"{module.name}: no docstring"


def section_headers(modules: Modules) -> Iterator[str]:
    """Check that headers of sections at module level have one form, and that each has code before the next one."""
    for module in modules.values():
        lines = module.source.splitlines()
        headers = [number for number, line in enumerate(lines) if re.match("# ?(──|--)", line)]
        for start, end in pairwise([*headers, len(lines)]):
            if len(lines[start]) != LINE or not re.fullmatch(r"# ── \S.* ─+", lines[start]):
                yield f"{module.name}:{start + 1}: write a header as '# ── text ───', filled to column {LINE}"
            if all(not line or line.startswith("#") for line in lines[start + 1 : end]):
                yield f"{module.name}:{start + 1}: there is no code under this header"


def private_attributes(modules: Modules) -> Iterator[str]:
    """Check that only the class that defines a private attribute uses it; see `private_accesses`."""
    for module in modules.values():
        for node, name in private_accesses(module.tree):
            yield module.at(node, f"{name} is private: use a public method of its owner, or move the code there")


# ── calls that the library never makes ───────────────────────────────────────────────────────────────────────────────


def tasks(modules: Modules) -> Iterator[str]:
    """Check that only TaskGroups create tasks. A TaskGroup is recognized by its name: `tg` or `…group`."""
    gatherers = {module.name: gathering(module) for module in modules.values()}
    for module, call in calls(modules):
        name = ast.unparse(call.func)
        owner, _, method = name.rpartition(".")
        owned = method == "create_task" and re.search(r"(^|[._])(tg|(\w*_)?group)$", owner)
        if method in ("create_task", "ensure_future") and not owned:
            yield module.at(call, f"{name}(…) makes a task that nobody owns")
        elif name in gatherers[module.name]:
            yield module.at(call, f"{name}(…) makes tasks that nobody owns")


def gathering(module: Module) -> set[str]:
    """Return the local names of asyncio's functions that wrap coroutines in tasks: `gather` and `as_completed`."""
    made = {"gather", "as_completed"}
    found = [n for n in module.nodes if isinstance(n, ast.ImportFrom) and n.module == "asyncio"]
    local = {alias.asname or alias.name for node in found for alias in node.names if alias.name in made}
    return local | {f"asyncio.{name}" for name in made}


def asserts(modules: Modules) -> Iterator[str]:
    """Check that the library has no asserts: `python -O` removes them."""
    for module in modules.values():
        for node in module.nodes:
            if isinstance(node, ast.Assert):
                yield module.at(node, "an assert in the library")


def prints(modules: Modules) -> Iterator[str]:
    """Check that only the command line prints."""
    for module, call in calls(modules):
        if isinstance(call.func, ast.Name) and call.func.id == "print" and not module.name.startswith(PRINTS):
            yield module.at(call, "print in the library")


def unsafe_calls(modules: Modules) -> Iterator[str]:
    """Check that data never becomes code: no pickle, no eval.

    Generated strands use `exec`, on text that aioflow has generated.
    """
    for module in modules.values():
        for node, target in imports(module, modules):
            if target.partition(".")[0] in ("pickle", "marshal", "shelve", "dill", "cloudpickle"):
                yield module.at(node, f"imports {target}")
    for module, call in calls(modules):
        if isinstance(call.func, ast.Name) and call.func.id == "eval":
            yield module.at(call, "eval")


def products(modules: Modules) -> Iterator[str]:
    """Check that BLAS functions come from the array namespace `xp`, or from `products` within the CPU backend."""
    for module in modules.values():
        if module.name in DOOR or module.name.startswith(BESIDE_THE_DOOR):
            continue
        nodes = module.nodes
        harmless = [node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr == "LinAlgError"]
        for node in nodes:
            if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
                yield module.at(node, "a product by the operator @")
            elif isinstance(node, ast.ImportFrom | ast.Import) and BLAS_IMPORT.search(ast.unparse(node)):
                yield module.at(node, ast.unparse(node))
            elif isinstance(node, LIBRARIES) and any(map(BLAS_LIBRARY.fullmatch, libraries(node))):
                yield module.at(node, f"{ast.unparse(node)} names a library that calls a BLAS of its own")
            elif isinstance(node, ast.Attribute) and node not in harmless and BLAS_NAME.search(ast.unparse(node)):
                yield module.at(node, f"{ast.unparse(node)} may call the BLAS")


def libraries(node: ast.Import | ast.ImportFrom | ast.Constant) -> list[str]:
    """Return the modules that an import names, or the text of a constant, which may go to `import_module`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [node.value] if isinstance(node.value, str) else []


def kernels_open_no_files(modules: Modules) -> Iterator[str]:
    """Check that kernels open files through `formats` only, within the worker's allowed folders."""
    kernels = {n: m for n, m in modules.items() if n.startswith("aioflow.kernels.") or registers_kernels(m)}
    for module in kernels.values():
        for node, target in imports(module, modules):
            if target.partition(".")[0] in FILE_LIBRARIES:
                yield module.at(node, f"imports {target}")
    for module, call in calls(kernels):
        if FILE_CALL.search(ast.unparse(call.func)):
            yield module.at(call, f"{ast.unparse(call.func)} opens a file")
        if opens_anywhere(call):
            yield module.at(call, f"{ast.unparse(call)} without the folders that are allowed")


def kernels_build_no_graph(modules: Modules) -> Iterator[str]:
    """Check that kernels import no builder of ops: what they share with definitions is in modules without builders."""
    builders = {name for name, module in modules.items() if any(t == BUILDS for _, t in imports(module, modules))}
    for module in modules.values():
        if module.name.startswith("aioflow.kernels."):
            for node, target in imports(module, modules):
                if target in builders | {BUILDS}:
                    yield module.at(node, f"imports {target}, which builds graphs")


def opens_anywhere(call: ast.Call) -> bool:
    """Return True if a function of TAKES_FOLDERS is called, or passed on, without folders."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    opens = any(ast.unparse(name) in TAKES_FOLDERS for name in (call.func, *given))
    return opens and not any("folders" in ast.unparse(value) for value in given)


def op_names(modules: Modules) -> Iterator[str]:
    """Check that no module keeps a list of op names: facts about ops belong to their definitions and kernels.

    The names in all collections of a module are counted together, so that splitting a list does not hide it.
    """
    for module in modules.values():
        if module.name.startswith(("aioflow.ops", "aioflow.kernels", *KERNEL_FILES, *TRANSLATIONS)):
            continue
        if registers_kernels(module):
            continue
        found: dict[str, ast.expr | ast.stmt] = {}
        for name, node in collections(module.tree):
            if f"{module.name}.{name}" not in PATTERNS:
                found.update(dict.fromkeys(op_strings(node), node))
        if len(found) > 3:
            yield module.at(next(iter(found.values())), f"facts about {', '.join(sorted(found))} by name")


def op_comparisons(modules: Modules) -> Iterator[str]:
    """Check that no comparison of an op with a name takes the place of a trait.

    The names of ops that only the compiler or the worker makes are allowed: there a name tells who made the node.
    """
    named = {(module.name, name): node for module in modules.values() for name, node in constants(module.tree)}
    for module in modules.values():
        if module.name.startswith(
            ("aioflow.ops.", "aioflow.kernels.", "aioflow.testing.", *KERNEL_FILES, *READS_GRAPHS)
        ):
            continue
        if registers_kernels(module):
            continue
        local = {name: node for (home, name), node in named.items() if home == module.name}
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom):
                found = {alias.asname or alias.name: named.get((node.module or "", alias.name)) for alias in node.names}
                local.update((name, value) for name, value in found.items() if value is not None)
        for node in module.nodes:
            if isinstance(node, ast.Compare) and OP_OF_NODE.search(ast.unparse(node)):
                names = {name for name in compared(node, local) if OPS.get(name).made_by == "user"}
                if module.name.startswith(REWRITES):
                    names = {name for name in names if traits_of(name).role is not Role.KERNEL}
                if names:
                    yield module.at(node, f"{ast.unparse(node)}: ask the traits or the role of the op")


def constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the constants of a module with their values."""
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value:
            yield from ((target.id, statement.value) for target in targets if isinstance(target, ast.Name))


def compared(node: ast.AST, constants: Mapping[str, ast.expr]) -> set[str]:
    """Return the op names in an expression, including those in constants that it mentions."""
    mentioned = [constants[n.id] for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in constants]
    return op_strings(node).union(*(compared(value, constants) for value in mentioned))


def registers_kernels(module: Module) -> bool:
    called = {ast.unparse(n.func) for n in module.nodes if isinstance(n, ast.Call)}
    return not module.in_core and bool(called & {"kernel", "binder", "KERNELS.register"})


def collections(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield every collection of literals, with the name of the constant that contains it, or an empty name."""
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        name = next((t.id for t in targets if isinstance(t, ast.Name)), "")
        for node in ast.walk(statement):
            if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict):
                yield name, node
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words = node.value.split()
                if len(words) > 1 and all(word.isidentifier() for word in words):
                    yield name, node


def op_strings(node: ast.AST) -> set[str]:
    strings = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return {word for text in strings for word in text.split() if word in OPS}


def boundary_names(modules: Modules) -> Iterator[str]:
    """Check that code names `_Arg`, `_Retval`, `_Send` and `_Recv` by the constants of `aioflow.graph.boundary`."""
    for module in modules.values():
        for node in module.nodes:
            if not isinstance(node, ast.Constant) or module.name == "aioflow.graph.boundary":
                continue
            if node.value in (ARG, RETVAL, SEND, RECV):
                yield module.at(node, "an end of a step or an edge as text: aioflow.graph.boundary has its name")


def calls(modules: Modules) -> Iterator[tuple[Module, ast.Call]]:
    for module in modules.values():
        yield from ((module, node) for node in module.nodes if isinstance(node, ast.Call))


# ── the tests ────────────────────────────────────────────────────────────────────────────────────────────────────────

RULES: Final[tuple[Rule, ...]] = (
    ranks,
    ranks_exist,
    cycles,
    relative_imports,
    core_names_no_backend,
    sizes,
    drawers,
    class_names,
    docstrings,
    section_headers,
    private_attributes,
    tasks,
    asserts,
    prints,
    unsafe_calls,
    products,
    kernels_open_no_files,
    kernels_build_no_graph,
    op_names,
    op_comparisons,
    boundary_names,
)

_LONG_FUNCTION = "def f():\n" + "    pass\n" * (FUNCTION_LINES + 1)
_HEADER = "# ── a ".ljust(LINE, "─") + "\n"
_LONG_CLASS = "class C:\n" + "    x = 1\n" * (CLASS_LINES + 1)

_EVERY_RANK: Final = [f"aioflow.{area}" if area else "aioflow" for area in RANKS]

# Programs that break a rule: the rule, the sources, and the number of findings.
WRONG: Final[tuple[tuple[Rule, dict[str, str], int], ...]] = (
    (ranks, {"aioflow.graph.a": "import aioflow.runtime.b", "aioflow.runtime.b": ""}, 1),
    (ranks, {"aioflow.graph.a": "def f():\n    from aioflow.runtime import b", "aioflow.runtime.b": ""}, 1),
    (ranks, {"aioflow.ops.a": "from aioflow.kernels import b", "aioflow.kernels.b": ""}, 1),
    (ranks, {"aioflow.errors": "from aioflow import nn", "aioflow": "", "aioflow.nn": ""}, 1),
    (ranks, {"aioflow.errors": "import aioflow as af", "aioflow": ""}, 1),
    (ranks, {"aioflow_numpy.a": "import aioflow", "aioflow": ""}, 1),
    (ranks, {"aioflow.graph.a": "import aioflow", "aioflow": ""}, 1),
    (ranks, {"aioflow.graph.a": "if TYPE_CHECKING:\n    import aioflow.runtime.b", "aioflow.runtime.b": ""}, 1),
    (ranks, {"aioflow.novelty": ""}, 1),
    (ranks, {"aioflow_numpy.a": "from aioflow.session.session import Session", "aioflow.session.session": ""}, 1),
    (ranks, {"aioflow_numpy.a": "import aioflow_cupy.b", "aioflow_cupy.b": ""}, 1),
    (ranks, {"aioflow_numpy.a": "import aioflow_onednn.b", "aioflow_onednn.b": ""}, 1),
    (ranks, {"aioflow.interop.a": "import aioflow_onnxruntime.b", "aioflow_onnxruntime.b": ""}, 1),
    (ranks_exist, {name: "" for name in _EVERY_RANK if name != "aioflow.net"}, 1),
    (ranks_exist, {name: "" for name in _EVERY_RANK if name != "aioflow"}, 1),
    (cycles, {"aioflow.a": "import aioflow.b", "aioflow.b": "def f():\n    from aioflow.a import x"}, 1),
    (cycles, {"aioflow.a": "import aioflow.a"}, 1),
    (cycles, {"aioflow.a": "import aioflow.b", "aioflow.b": "if TYPE_CHECKING:\n    from aioflow.a import X"}, 1),
    (relative_imports, {"aioflow.a": "from . import b\nfrom .b import c"}, 2),
    (core_names_no_backend, {"aioflow.a": "def f():\n    import aioflow_numpy.blas"}, 1),
    (core_names_no_backend, {"aioflow.a": "import cupy"}, 1),
    (core_names_no_backend, {"aioflow.a": "__import__('aioflow_cupy')"}, 1),
    (core_names_no_backend, {"aioflow.a": "load_backend('numpy')", "aioflow.cli.doctor": "('numpy', 'cupy')"}, 2),
    (sizes, {"aioflow.a": "x = 1\n" * (MODULE_LINES + 1)}, 1),
    (sizes, {"aioflow.a": _LONG_FUNCTION + "async " + _LONG_FUNCTION}, 2),
    (sizes, {"aioflow.a": _LONG_CLASS}, 1),
    (drawers, {"aioflow.graph.utils": "", "aioflow.common.x": "", "aioflow._helpers": ""}, 3),
    (class_names, {"aioflow.a": "class C: pass", "aioflow_numpy.b": "class C: pass\nC: TypeAlias = int"}, 2),
    (docstrings, {"aioflow.a": "x = 1"}, 1),
    (section_headers, {"aioflow.a": f"{_HEADER}#\n# A comment.\n\n{_HEADER}x = 1\n{_HEADER}"}, 2),
    (section_headers, {"aioflow.a": "# -- a ---\nx = 1\n# ── b ───\nx = 2\n"}, 2),
    (private_attributes, {"aioflow.a": "class C:\n    _x = 1\ndef f(c, self):\n    c._x = self._x"}, 2),
    (private_attributes, {"aioflow.a": "class C:\n    def f(self, d): d.y()._x\nclass D:\n    _x = 1"}, 1),
    (private_attributes, {"aioflow_numpy.a": "import m\nfrom m import _x\nm._y()\ngetattr(m, '_z', None)"}, 3),
    (private_attributes, {"aioflow.a": "class C(D):\n    def f(self, d):\n        _x = self._x\n        d._x"}, 1),
    (tasks, {"aioflow.a": "asyncio.create_task(f())\nloop.create_task(f())\nensure_future(f())"}, 3),
    (
        tasks,
        {"aioflow.a": "create_task(f())\nasyncio.get_running_loop().create_task(f())\nregroup.create_task(f())"},
        3,
    ),
    (
        tasks,
        {"aioflow.a": "asyncio.gather(f())\nfrom asyncio import gather as g\ng(f())\nasyncio.as_completed(c)"},
        3,
    ),
    (asserts, {"aioflow.a": "assert x", "aioflow_numpy.a": "def f():\n    assert x"}, 2),
    (prints, {"aioflow.a": "print(1)", "aioflow_numpy.a": "print(1)"}, 2),
    (unsafe_calls, {"aioflow.a": "import pickle\neval('1')"}, 2),
    (products, {"aioflow.a": "y = a @ b\ny @= b", "aioflow_numpy.a": "y = a @ b"}, 3),
    (products, {"aioflow.a": "np.matmul(a, b)\nnumpy.dot(a, b)\na.dot(b)\nself.rows.dot(b)"}, 4),
    (products, {"aioflow.a": "np.linalg.inv(a)\nf = np.linalg\nrng.multivariate_normal(m, c)\nnp.einsum(e, a, b)"}, 4),
    (products, {"aioflow_numpy.a": "from numpy import matmul as m\nimport numpy.linalg\nfrom scipy import linalg"}, 3),
    (products, {"aioflow.a": "import scipy\nimport scipy.linalg as l\nimport_module('scipy.sparse')"}, 3),
    (kernels_open_no_files, {"aioflow.kernels.io.a": "import glob\nfrom pathlib import Path\nimport fsspec.core"}, 3),
    (kernels_open_no_files, {"aioflow.kernels.a": "open(x)\nos.open(x, 0)\nos.path.exists(x)\nnp.fromfile(x)"}, 4),
    (kernels_open_no_files, {"aioflow_numpy.a": "@kernel('Add')\ndef f(x, y):\n    return x.tofile('y')"}, 1),
    (
        kernels_open_no_files,
        {"aioflow.kernels.a": "read_whole(path)\nCheckpointReader(prefix)\nTextLines(work, 0)\nf(read_whole, x)"},
        4,
    ),
    (
        kernels_build_no_graph,
        {"aioflow.kernels.a": "from aioflow.ops import apply, b", "aioflow.ops.b": f"import {BUILDS}", BUILDS: ""},
        2,
    ),
    (op_names, {"aioflow.compiler.a": "CHEAP = ('Add', 'Sub', 'Mul', 'Neg')"}, 1),
    (
        op_names,
        {"aioflow.compiler.a": "A = {'Add': 1, 'Sub': 2}\nB = ['Mul']\ndef f(op):\n    return op in ('Neg',)"},
        1,
    ),
    (op_names, {"aioflow.runtime.a": "FREE = frozenset('Add Sub Mul Neg'.split())"}, 1),
    (
        op_comparisons,
        {"aioflow.compiler.a": "x.op == 'Cast'\nx.op not in ('Identity', *ENDS)\n'Add' != tensor.op.type"},
        3,
    ),
    (
        op_comparisons,
        {"aioflow.a": "from aioflow.b import A\nx.op in B\nB = (A,)", "aioflow.b": "A: Final = 'Add'"},
        1,
    ),
    (op_comparisons, {"aioflow.compiler.optimize.a": "x.op == 'Const'\nx.op in ('Switch', 'Add')"}, 2),
    (boundary_names, {"aioflow.compiler.a": "x.op == '_Arg' or x.op in ('_Send',)"}, 2),
)

# Correct programs that resemble wrong ones.
RIGHT: Final[tuple[tuple[Rule, dict[str, str]], ...]] = (
    (ranks, {"aioflow.graph.a": "from aioflow.graph import b", "aioflow.graph.b": "", "aioflow.graph": ""}),
    (ranks, {"aioflow": "from aioflow import nn", "aioflow.nn": "from aioflow.ops import x", "aioflow.ops": ""}),
    (ranks, {"aioflow_numpy.a": "from aioflow.kernels import x", "aioflow.kernels": ""}),
    (ranks, {"aioflow_onednn.a": "import aioflow_numpy.b", "aioflow_numpy.b": ""}),
    (ranks, {"aioflow_onnxruntime.a": "import aioflow.interop.b", "aioflow.interop.b": ""}),
    (cycles, {"aioflow.a": "import aioflow.b\nimport aioflow.c", "aioflow.b": "import aioflow.c", "aioflow.c": ""}),
    (
        class_names,
        {
            "aioflow.a": "class C: pass\nclass _D: pass",
            "aioflow.b": "from aioflow.a import C\nclass _D:\n    class C: pass",
        },
    ),
    (
        private_attributes,
        {
            "aioflow.a": "class C:\n    def f(self, c):\n        self._x: int = 1\n        c._x, c._g(), c._s, C._y\n"
            "    if 1: _y = 2\n    def _g(self): super()._z\n    __slots__ = ('_s',)"
        },
    ),
    (
        section_headers,
        {"aioflow.a": f"{_HEADER}#\n# A comment.\n\nclass C:\n    # -- b ---\n    x = 1\n{_HEADER}x = 1"},
    ),
    (private_attributes, {"aioflow.a": "row._replace(x=1)\nx.__dict__\nsys._getframe(1)\nhasattr(x, '_fields')"}),
    (tasks, {"aioflow.a": "tg.create_task(f())\nself._group.create_task(f())\nself.task_group.create_task(f())"}),
    (tasks, {"aioflow.a": "from aioflow.runtime.bind import gather\ngather(x)\nbind.gather(x)"}),
    (ranks_exist, dict.fromkeys(_EVERY_RANK, "")),
    (prints, {"aioflow.cli.ops": "print(1)", "aioflow.__main__": "print(1)"}),
    (products, {"aioflow.a": "xp.matmul(a, b)\nself.xp.dot(a, b)\nbinding.xp.linalg.inv(a)\nf = xp.einsum"}),
    (products, {"aioflow.a": "try: f()\nexcept np.linalg.LinAlgError: np.einsum_path(e)\naf.matmul(a, b)"}),
    (products, {"aioflow_numpy.a": "products.dot(a, b)", "aioflow_numpy.products": "np.dot(a, b)"}),
    (
        products,
        {"aioflow.a": "import scipy.special\nfrom scipy import special\nf(import_module('scipy.special'), 'SciPy')"},
    ),
    (kernels_open_no_files, {"aioflow.kernels.a": "_pillow().open(BytesIO(data))\nread_whole(folders.file(path))"}),
    (kernels_open_no_files, {"aioflow.kernels.a": "partial(TextLines, skip=0, folders=binding.folders)"}),
    (kernels_open_no_files, {"aioflow.formats.a": "open(x)", "aioflow_numpy.blas": "open('/proc/cpuinfo')"}),
    (kernels_build_no_graph, {"aioflow.kernels.a": "import aioflow.ops.b", "aioflow.ops.b": "", BUILDS: ""}),
    (products, {"aioflow.testing.a": "a @ b", "aioflow_cupy.a": "a @ b"}),
    (op_comparisons, {"aioflow.compiler.optimize.a": "x.op == 'Cast'", "aioflow.saved.a": "x.op == 'Const'"}),
    (op_comparisons, {"aioflow.a": "x.op == A or x.op in OPS or x.name == 'Add'\nA: Final = '_Delegated'"}),
    (sizes, {"aioflow.a": 'def f():\n    """' + "\n" * FUNCTION_LINES + '    """\n    pass\n'}),
)


def name_of(value: object) -> str | None:
    return value.__name__ if callable(value) and hasattr(value, "__name__") else None


@pytest.fixture(scope="module")
def tree() -> Modules:
    """Return all modules, parsed."""
    # The tree has a million nodes. Without freezing them, each later collection would traverse them again.
    gc.disable()
    try:
        return read_tree()
    finally:
        gc.freeze()
        gc.enable()


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_source_keeps_the_rule(rule: Rule, tree: Modules) -> None:
    findings = list(rule(tree))
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize(("rule", "sources", "findings"), WRONG, ids=name_of)
def test_rule_finds_a_wrong_program(rule: Rule, sources: dict[str, str], findings: int) -> None:
    assert len(list(rule(parse(sources)))) == findings


@pytest.mark.parametrize(("rule", "sources"), RIGHT, ids=name_of)
def test_rule_accepts_a_correct_look_alike(rule: Rule, sources: dict[str, str]) -> None:
    assert list(rule(parse(sources))) == []


def test_every_rule_has_a_wrong_program() -> None:
    assert {rule for rule, *_ in WRONG} == set(RULES)


def test_all_areas_of_the_source_are_read(tree: Modules) -> None:
    """The lower bounds fail if a folder has moved and the rules would look at nothing."""
    count = Counter(module.area if module.in_core else "backends" for module in tree.values())
    assert {"aioflow", "aioflow.errors", "aioflow.loading.preload", "aioflow_numpy", "aioflow_numpy.blas"} <= set(tree)
    assert sum(count.values()) >= 60, count
    assert sum(1 for module in tree.values() for _ in imports(module, tree)) >= 200
    for area in ("graph", "ops", "kernels", "autodiff", "compiler", "runtime", "train", "backends"):
        assert count[area] >= 2, area
