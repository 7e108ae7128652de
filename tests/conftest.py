"""Shared setup: each test has its own default graph and a time limit, and fails if it blocks an event loop."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import gc
import importlib
import os
import signal
import sys
import tempfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, TextIO

import hypothesis
import pytest

import aioflow as af
from aioflow.graph.opdef import OPS
from aioflow.kernels.registry import KERNELS
from aioflow_numpy.compiled.code import SETTING
from aioflow_numpy.compiled.wanted import BACKGROUND
from tests.support.audit import seen
from tests.support.loop_watch import BUSY, IDLE, watched
from tests.support.retries import Retries

_MEMORY = Path("/dev/shm")

# Tests run in tiers. A unit test is one process, and neither the order of tests nor the machine's speed changes its
# outcome. System tests start processes, servers and clusters, and run after the units. Sweeps call every op, or replay
# many seeds; `--sweep-share` takes a sample of them. Folders of the system tests and the sweeps:
_SYSTEM: Final = ("browser", "cli", "distributed", "examples", "system", "types")
_SWEEP: Final = ("sweep",)
# Tests with one of these markers are in no tier: each has a tox environment of its own.
_APART: Final = ("parity", "bench", "soak", "sim", "fuzz", "onnx", "browser")

# The slowest files, slowest first. A worker that began one of them last would delay the end of the run.
_LONG: Final = (
    "sweep/test_one_door.py",
    "sweep/hostile/test_hostile_calls.py",
    "sweep/test_ops_on_the_fake.py",
    "sweep/test_deadlines.py",
    "session/test_closing.py",
    "net/test_cancellation.py",
)

# Tests that do not depend on the interpreter: results of ops and of compiled code, graphs, files, output of commands,
# random programs under a virtual clock, trained models, recovery of clusters, pages. One interpreter runs these. The
# others, with `--other-interpreter`, run only what may differ between interpreters: event loops, threads, processes,
# connections, memory, generated code.
_ALIKE: Final = (
    "autodiff",
    "backends/cupy",
    "backends/onnxruntime/test_translations.py",
    "backends/test_",
    "cli/test_calibrate.py",
    "cli/test_devices.py",
    "cli/test_explain.py",
    "cli/test_graph.py",
    "cli/test_inspecting.py",
    "cli/test_model_inputs.py",
    "cli/test_models.py",
    "cli/test_onnx_models.py",
    "cli/test_port.py",
    "cli/test_profile.py",
    "cli/test_top.py",
    "compiler",
    "demo",
    "distributed/test_ray.py",
    "examples",
    "formats",
    "graph",
    "interop",
    "kernels",
    "ops",
    "parity",
    "protos",
    "runtime/test_branches.py",
    "runtime/test_deadlock_freedom.py",
    "saved",
    "session/test_random_constraints.py",
    "sweep",
    "system/compiled/test_chains.py",
    "system/compiled/test_depthwise.py",
    "system/compiled/test_patches.py",
    "system/compiled/test_pools.py",
    "system/compiled/test_small.py",
    "system/compiled/test_updates.py",
    "system/test_audit.py",
    "system/test_benchmark_tables.py",
    "system/test_blocked_loops.py",
    "system/test_cluster_page.py",
    "system/test_demo.py",
    "system/test_docs.py",
    "system/test_elastic.py",
    "system/test_every_test_ends.py",
    "system/test_host_ranges.py",
    "system/test_killed_savers.py",
    "system/test_monitored_recovery.py",
    "system/test_namespaces.py",
    "system/test_pages.py",
    "system/test_public_names.py",
    "system/test_recovery.py",
    "system/test_retries.py",
    "system/test_safetensors_memory.py",
    "system/test_soak.py",
    "system/test_unlisted_checkpoints.py",
    "system/test_without_onnx.py",
    "test_architecture.py",
    "test_docs.py",
    "train/monitored/test_checkpointed_input.py",
    "train/test_elastic_clusters.py",
    "train/test_gradient_accumulation.py",
    "train/test_optimizers.py",
    "train/test_training_in_a_session.py",
    "types",
)

# With `--shake`, garbage is collected after a few new objects, and threads switch after a microsecond.
_COLLECT_AFTER: Final = 3  # objects
_SWITCH_AFTER: Final = 1e-6  # seconds

_STDERR = pytest.StashKey[TextIO]()
_COMPILER = pytest.StashKey[str]()
_COMPILING = 90  # seconds: more than the deadline of one call of the compiler

# Examples have no deadline, since a busy machine may be slow: the time limit is that of the test. The quick profile is
# derandomized, so that a run does not fail on examples that the previous run did not try.
_ANY_TIME: Final = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("quick", _ANY_TIME, max_examples=25, derandomize=True)
hypothesis.settings.register_profile("thorough", _ANY_TIME, max_examples=100)
hypothesis.settings.load_profile("quick")


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options of the runs in `tox.ini`."""
    parser.addoption(
        "--other-interpreter",
        action="store_true",
        help="leave out what no interpreter changes: another one has run it",
    )
    parser.addoption(
        "--sweep-share",
        type=_positive,
        default=1,
        metavar="N",
        help="of the sweeps, run one test in N, chosen by --sweep-seed",
    )
    parser.addoption("--sweep-seed", type=int, default=0, metavar="SEED", help="which tests --sweep-share chooses")
    parser.addoption(
        "--flaky-limit",
        type=int,
        help="run failing tests again; the run fails if more than so many pass then",
    )
    parser.addoption(
        "--delegated",
        action="store_true",
        help="let onnxruntime compute what it can in every session, from the first run on",
    )
    parser.addoption(
        "--tensorflow",
        action="store_true",
        help="in tests/parity, compare with TensorFlow itself, and bring its stored results up to date",
    )
    parser.addoption(
        "--soak-minutes", type=_positive, default=10, metavar="N", help="how long the soaks put load on one process"
    )
    parser.addoption(
        "--shake",
        action="store_true",
        help="collect garbage and switch threads as often as possible: a test that depends on when that happens fails",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Save stderr before it is captured, and import in advance what the first session would import on its loop."""
    config.stash[_STDERR] = os.fdopen(os.dup(2), "w")
    config.stash[_COMPILER] = os.environ.get(SETTING, "")
    if (limit := config.getoption("--flaky-limit")) is not None:
        config.pluginmanager.register(Retries(limit))
    if config.getoption("--delegated"):
        importlib.import_module("tests.support.delegating").delegate_all()
    OPS.load()
    KERNELS.load()
    importlib.import_module("aioflow_numpy.backend")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Report which sweeps run."""
    share = config.getoption("--sweep-share")
    return [f"sweeps: one in {share}, by --sweep-seed {config.getoption('--sweep-seed')}"] if share > 1 else []


@pytest.hookimpl(tryfirst=True)  # before -m looks at the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier, deselect tests, and move slow files to the front. Order within a file is kept."""
    tests = Path(__file__).parent
    share, seed = config.getoption("--sweep-share"), config.getoption("--sweep-seed")
    left_out = _ALIKE if config.getoption("--other-interpreter") else ()
    live = config.getoption("--tensorflow")
    deselected = set[pytest.Item]()
    for item in items:
        place = item.path.relative_to(tests).as_posix() if tests in item.path.parents else ""
        tier = "system" if place.startswith(_SYSTEM) else "sweep" if place.startswith(_SWEEP) else "unit"
        if place.startswith("parity"):
            item.add_marker("parity")
            # A test that compares with stored results is a unit test.
            if not live and {"parity", "tf"} & set(getattr(item, "fixturenames", ())) == {"parity"}:
                item.add_marker("unit")
        elif not any(map(item.get_closest_marker, _APART)):
            item.add_marker(tier)
        if left_out and place.startswith(left_out):
            deselected.add(item)
        if tier == "sweep" and zlib.crc32(f"{seed} {item.nodeid}".encode()) % share:
            deselected.add(item)
    if deselected:
        config.hook.pytest_deselected(items=list(deselected))
        items[:] = [item for item in items if item not in deselected]
    rank = {tests / name: number for number, name in enumerate(_LONG)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def pytest_collection_finish() -> None:
    """Freeze the objects that all tests share."""
    # The collector would scan them again for every graph that a test drops.
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the saved stderr."""
    config.stash[_STDERR].close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Limit the time of the teardown, which a failed test may have made endless."""
    # A failed test has switched off every other time limit.
    limit = float(item.config.getini("faulthandler_timeout"))
    with _rules(item):
        if not limit:  # -o faulthandler_timeout=0: debugging
            return (yield)
        faulthandler.dump_traceback_later(limit, file=item.config.stash[_STDERR], exit=True)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Run the setup under the rules too, since async fixtures run on the loop."""
    for mark in item.iter_markers("blocks_loop"):
        if not (mark.args and isinstance(mark.args[0], str)):
            pytest.fail("blocks_loop needs a reason, as in blocks_loop('it compiles in place')", pytrace=False)
    # The compiler starts once NumPy's kernels have taken a certain time: on a slow machine, in any unit test.
    if item.get_closest_marker("unit"):
        os.environ[SETTING] = "off"
        # Another kind of test may have run before in this process, and left code to compile.
        BACKGROUND.drop()
        BACKGROUND.wait(_COMPILING)
    else:
        os.environ[SETTING] = item.config.stash[_COMPILER]
    if item.config.getoption("--shake"):  # per test, since an earlier test may have set them
        gc.set_threshold(_COLLECT_AFTER)
        sys.setswitchinterval(_SWITCH_AFTER)
    with _rules(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test that breaks the rules."""
    with _rules(item):
        return (yield)


@contextmanager
def _rules(item: pytest.Item) -> Iterator[None]:
    """Fail a test that blocks its loop or writes into the repository, and a unit test that starts a process."""
    with _unblocked(item), seen() as found:
        yield
    if found.writes:
        pytest.fail("\n".join(["a test writes to temporary folders, not to", *found.writes]), pytrace=False)
    if found.children and item.get_closest_marker("unit"):
        rule = "a unit test is one process; move it to tests/system/, since it started"
        pytest.fail("\n".join([f"{rule}:", *found.children]), pytrace=False)


@contextmanager
def _unblocked(item: pytest.Item) -> Iterator[None]:
    """Fail if the block holds an event loop, unless the test has the marker `blocks_loop`."""
    if item.get_closest_marker("blocks_loop"):
        yield
        return
    with watched() as found:
        yield
    if found:
        limits = f"{BUSY} s of the processor, or {IDLE} s without it"
        pytest.fail("\n".join([f"an event loop was held for more than {limits}:", *found]), pytrace=False)


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item) -> Generator[None, object, object]:
    """Print the stack of every task at a timeout: the traceback alone ends in the event loop."""
    result = yield
    fail = signal.getsignal(signal.SIGALRM) if hasattr(signal, "SIGALRM") else None
    if callable(fail):

        def handler(number: int, frame: FrameType | None) -> None:
            loop = _running_loop()
            if loop is not None:
                _show_tasks(loop, item.config.stash[_STDERR])
            if loop is None or isinstance(loop, asyncio.BaseEventLoop):
                fail(number, frame)
            else:  # uvloop would log an exception raised here and go on
                loop.call_soon_threadsafe(loop.stop)

        signal.signal(signal.SIGALRM, handler)
    return result


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _show_tasks(loop: asyncio.AbstractEventLoop, file: TextIO) -> None:
    for task in asyncio.all_tasks(loop):
        print(f"\nTimeout: {task}", file=file)
        task.print_stack(file=file)
    file.flush()


@pytest.fixture(autouse=True)
def graph() -> Iterator[af.Graph]:
    """Yield a new default graph."""
    with af.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder for files that are written thousands of times: in memory, if the system has /dev/shm."""
    if not os.access(_MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        yield Path(folder)
