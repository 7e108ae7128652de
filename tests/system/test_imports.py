"""Tests of kernels and ops that are imported late, after an interruption, or while another thread forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from aioflow.loading import preload

SECOND = """
from aioflow import errors
from aioflow.kernels.registry import elementwise, kernel
try:
    {registered}
except errors.AlreadyRegisteredError as error:
    print("refused", error.op_type)
import asyncio, aioflow as af
async def main():
    async with af.Session() as session:
        print(await session.run(af.constant([[2.0]]) @ af.constant([[3.0]])))
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("op", "registered"),
    [
        ("MatMul", "kernel('MatMul')(lambda a, b, *, transpose_a, transpose_b: a)"),
        ("Tanh", "elementwise({'Tanh': 'tanh'})"),
    ],
)
def test_second_kernel_for_an_op_is_rejected_on_registration(op: str, registered: str) -> None:
    """Check this also before any kernel of aioflow is loaded, and that later steps still work."""
    program = SECOND.replace("{registered}", registered)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split("\n")[:2] == [f"refused {op}", "[[6.]]"], done.stdout + done.stderr


_INTERRUPTED = """
import sys

left = {count}

def profile(frame, event, argument):
    global left
    if event == "return" and frame.f_code.co_name == {function!r} and frame.f_code.co_filename.endswith({file!r}):
        left -= 1
        if not left:
            sys.setprofile(None)
            raise KeyboardInterrupt

def run():
    import aioflow as af
    session = af.Session()
    session.list_devices()  # loads the backends in this thread
    return session.run_sync(af.gradients(af.square(x := af.constant(3.0)), x)[0])

sys.setprofile(profile)
try:
    run()
except KeyboardInterrupt:
    print("interrupted", run())
"""


@pytest.mark.parametrize(
    ("function", "file", "counts"),
    [
        ("offer", "kernels/registry.py", (1, 5, 30)),
        ("register", "graph/opdef.py", (2, 100, 200)),
        ("_register_gradient", "graph/gradient_registry.py", (1, 50, 150)),
    ],
)
def test_interrupted_import_is_completed_by_the_next(function: str, file: str, counts: tuple[int, ...]) -> None:
    """Interrupt the loading of aioflow and its kernels, as Ctrl-C does: half-registered modules must do no harm."""
    for count in counts:
        code = _INTERRUPTED.format(count=count, function=function, file=file)
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True, timeout=120)
        assert ran.stdout == "interrupted 6.0\n", (count, ran.stderr)


_FORKED = """
import os, signal, sys, threading, time
import aioflow as af

class SlowFinder:
    began = threading.Event()

    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            self.began.set()
            time.sleep(0.3)  # the module's lock is held meanwhile

def run():
    with af.Graph().as_default():
        return af.Session().run_sync(af.constant(2.0) * 3.0)

sys.meta_path.insert(0, SlowFinder())
thread = threading.Thread(target=run)
thread.start()
SlowFinder.began.wait()
if os.fork() == 0:
    signal.alarm(20)
    print("child", run(), flush=True)
    os._exit(0)
os.wait()
thread.join()
"""
_UNGUARDED = """
import sys
import aioflow as af
from aioflow.concurrency import forking

class Finder:
    unguarded = []

    def find_spec(self, name, path=None, target=None):
        if not forking._IMPORTS.is_here():
            self.unguarded.append(name)

sys.meta_path.insert(0, Finder())
with af.Graph().as_default():
    print(af.Session().run_sync(af.constant(2.0) * 3.0), Finder.unguarded)
"""
_WHERE = """
import asyncio, sys, threading
import aioflow as af

class Finder:
    found = []

    def find_spec(self, name, path=None, target=None):
        self.found.append((name, threading.current_thread() is threading.main_thread()))

async def main():
    x = af.reduce_sum(af.constant([1.0, 2.0]))
    opened = af.Session()
    sys.meta_path.insert(0, Finder())
    async with opened as session:
        print(await session.run(x))
    here = [name for name, here in Finder.found if here and name.startswith("aioflow")]
    print({"aioflow_numpy.backend", "aioflow.kernels.math.reduction"} <= {name for name, _ in Finder.found}, here)

asyncio.run(main())
"""


def test_event_loop_loads_neither_backends_nor_kernels() -> None:
    ran = subprocess.run([sys.executable, "-c", _WHERE], capture_output=True, check=False, text=True, timeout=120)
    assert (ran.stdout, ran.stderr) == ("3.0\nTrue []\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize(
    "module", ["aioflow.session.planner", "aioflow_numpy.blas_threads", "aioflow.kernels.math.elementwise"]
)
def test_fork_waits_for_imports_in_other_threads(module: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _FORKED, module]
    ran = subprocess.run(command, capture_output=True, check=False, text=True, timeout=120)
    assert (ran.stdout, ran.stderr) == ("child 6.0\n", "")


def test_first_step_guards_all_its_imports_against_forks() -> None:
    """Check every import of the first step.

    If a process forks while another thread imports a module, the child waits forever for that module's lock.
    """
    ran = subprocess.run([sys.executable, "-c", _UNGUARDED], capture_output=True, check=False, text=True, timeout=120)
    assert (ran.stdout, ran.stderr) == ("6.0 []\n", "")


NO_CUPY = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cupy", "cupyx"):
            raise ImportError("CuPy is not to be imported")
sys.meta_path.insert(0, Refuse())
import aioflow, aioflow_cupy, aioflow_cupy.backend, aioflow_cupy.graphs
assert "cupy" not in sys.modules
from aioflow_cupy.backend import CupyBackend
try:
    CupyBackend()
except ImportError as error:
    print(error)
"""


def test_cupy_backend_imports_without_cupy_and_explains_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", NO_CUPY], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "pip install 'aioflow-engine[cupy" in done.stdout  # for the CUDA version of this machine's driver


@pytest.mark.parametrize(("missing", "extra"), [("grpc", "grpc"), ("starlette", "serve"), ("uvicorn", "serve")])
def test_missing_package_of_a_server_is_answered_with_its_extra(missing: str, extra: str) -> None:
    name = "Server" if missing == "uvicorn" else "GrpcServer"
    program = f"import sys; sys.modules[{missing!r}] = None; import aioflow.serve; aioflow.serve.{name}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert f"{name} needs the {missing} package" in done.stderr
    assert f"pip install 'aioflow-engine[{extra}]'" in done.stderr


def test_tensorflow_names_are_loaded_on_first_use() -> None:
    code = """if True:
        import sys, aioflow
        assert "aioflow.loading.tensorflow_names" not in sys.modules
        assert not hasattr(aioflow, "distributions")
        assert "aioflow.loading.tensorflow_names" in sys.modules
        assert "distributions" not in dir(aioflow)
        for name, text in (
            ("estimator", "see docs/compatibility.md"),
            ("worker", "no attribute 'worker'; it is a module that has to be imported: import aioflow.worker"),
        ):
            try:
                getattr(aioflow, name)
            except AttributeError as error:
                assert str(error).endswith(text), error
            else:
                raise AssertionError(name)
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_preload_hooks_run_before_numpy_and_load_no_heavy_modules() -> None:
    """Check for the modules that made importlib.metadata cost 28 ms."""
    # The module is loaded by its file, since importing the package would load NumPy.
    code = textwrap.dedent(f"""
        import importlib.util, json, sys
        spec = importlib.util.spec_from_file_location("preload", {preload.__file__!r})
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        names = module.run_preload_hooks()
        print(json.dumps([names, [m for m in ("numpy", "email", "zipfile") if m in sys.modules]]))
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    names, heavy = json.loads(done.stdout)
    assert "numpy" in names
    assert heavy == []


_PROGRAM = """
import importlib, pkgutil, sys, time
import aioflow.testing.sim_net
before = set(sys.modules)
for area in ("net", "train", "distributed", "session"):
    package = importlib.import_module(f"aioflow.{area}")
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)
clocks = (time.perf_counter, time.monotonic)
later = [vars(sys.modules[name]) for name in sorted(set(sys.modules) - before) if name.startswith("aioflow")]
print([names["__name__"] for names in later if any(clock in names.values() for clock in clocks)])
"""


def test_modules_that_read_clocks_are_loaded_before_a_simulation() -> None:
    command = [sys.executable, "-c", _PROGRAM]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert found.strip() == "[]"
