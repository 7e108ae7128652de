"""Tests of the names of the package in newly started programs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import aioflow as af


def test_import_loads_no_heavy_modules() -> None:
    heavy = ["importlib.metadata", "email", "zipfile", "tempfile", "uvloop", "safetensors", "starlette", "uvicorn",
             "matplotlib", "rich", "httpx", "pickletools", "unittest", "multiprocessing", "xml", "urllib.request",
             "re2", "aioflow.testing", "aioflow.cli", "aioflow.demo", *OF_CLUSTERS]  # fmt: skip
    assert loaded("import aioflow", heavy) == "[]"


# All modules of aioflow that `import aioflow` may load: those that run before NumPy, and the map of public names.
BARE = """
    aioflow aioflow.concurrency aioflow.concurrency.forking aioflow.errors aioflow.loading aioflow.loading.installed
    aioflow.loading.later aioflow.loading.preload aioflow.memory aioflow.memory.collector aioflow.ops aioflow.ops.public
    aioflow.release
"""


def test_import_loads_only_the_map_of_names() -> None:
    program = "import sys, aioflow\nprint(*(m for m in sys.modules if m.partition('.')[0] == 'aioflow'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert set(done.stdout.split()) == set(BARE.split())


def test_building_a_graph_does_not_load_asyncio() -> None:
    assert loaded("import numpy, aioflow as af\naf.matmul([[1.0]], [[2.0]])", ["asyncio", "aioflow.runtime"]) == "[]"


def test_op_is_found_on_every_path() -> None:
    """Find it by the table of names, its own name, `extend.make`, `create_op` and the import of a definition."""
    for program in (
        "y = af.nn.relu(x)",
        "y = af.raw_ops.Relu(features=x)",
        "from aioflow import extend; y = extend.make('Relu', x)",
        "y = af.get_default_graph().create_op('Relu', [x], {'T': x.dtype}, [(x.dtype, x.dims)]).outputs[0]",
        "from aioflow.ops.importer import import_graph_def as read; (y,) = read(GRAPH, {'x': x}, ['y:0'])",
    ):
        code = f"import aioflow as af\nx = af.constant([2.0, -1.0])\n{program}\n{_IT_RUNS}".replace("GRAPH", _GRAPH)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
        assert done.stdout == "[1.5 0. ] [1. 0.]\n", done.stderr


_IT_RUNS = """
d = af.gradients(y, x)[0]
with af.Session() as session:
    print(session.run_sync(y - 0.5 * d), session.run_sync(d))
"""
_GRAPH = """af.GraphDef((
    af.NodeDef('x', 'Placeholder', (), '', {'dtype': af.float32, 'shape': (2,)}),
    af.NodeDef('y', 'Relu', ('x',), '', {'T': af.float32}),
))"""


def test_redefinition_of_an_op_is_rejected_before_the_op_is_imported() -> None:
    for program, error in (
        ("define_op('Relu', 'x: T', 'y: T', ['T: type'])", "AlreadyRegisteredError"),
        ("not_differentiable('Relu')", "AlreadyRegisteredError"),
        ("define_op('AnOp', 'x: T', 'y: T', ['T: type'])", ""),
        ("make('Rleu', 1.0)", "did you mean 'Relu'"),
    ):
        command = [sys.executable, "-c", f"from aioflow.extend import *\n{program}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert error in done.stderr, program
        assert (done.returncode == 0) is (not error), done.stderr


def test_concurrent_first_lookups_find_the_same_names() -> None:
    program = """
import threading, aioflow as af
names = ["matmul", "reshape", "nn", "train", "Session", "gradients", "image", "while_loop", "Variable"] * 3
start, found = threading.Barrier(len(names)), []
def ask(name):
    start.wait()
    found.append(getattr(af, name) is getattr(af, name) and "Relu" in __import__("aioflow.graph.opdef").graph.opdef.OPS)
threads = [threading.Thread(target=ask, args=(name,)) for name in names]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(found.count(True))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert (done.stdout, done.stderr) == ("27\n", "")


# Modules that a program without a cluster does not need; they are loaded on first use.
OF_CLUSTERS = [
    "aioflow.net",
    "aioflow.distributed.ring_all_reduce",
    "aioflow.train.sync_replicas",
    "aioflow.train.monitored",
]


def loaded(code: str, modules: list[str]) -> str:
    """Return the list of those of these modules that the program has loaded at its end."""
    program = f"{code}\nimport sys\nprint([m for m in {modules} if m in sys.modules])"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()


def test_local_session_loads_no_cluster_modules() -> None:
    local = "import aioflow as af\nwith af.Session() as session: session.run_sync(af.constant(1) + 1)"
    assert loaded(local, OF_CLUSTERS) == "[]"


def test_lazily_loaded_names_behave_like_other_names() -> None:
    program = (
        "import aioflow.train as t; assert {*t.__all__} <= {*dir(t)}; t.Scaffold; from aioflow.train import Server"
    )
    assert loaded(program, ["aioflow.train.monitored", "aioflow.net.server"]) != "[]"
    with pytest.raises(AttributeError, match="did you mean 'MonitoredTrainingSession'"):
        af.train.MonitoredTrainingSesion  # type: ignore[attr-defined]  # noqa: B018


def test_type_hints_load_the_classes_they_name() -> None:
    program = (
        "import typing, aioflow as af\n"
        "from aioflow.graph.default_session import StepRunner\n"
        "hints = [typing.get_type_hints(f) for f in (af.get_default_session, af.assign, af.Tensor.eval)]\n"
        "assert hints[0]['return'] == af.Session | None and hints[1]['ref'] is af.Variable\n"
        "assert hints[2]['session'] == StepRunner | None"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
