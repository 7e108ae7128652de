"""What every test gets: a default graph of its own, an end, and an event loop that fails it when it is blocked."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import importlib
import os
import signal
import tempfile
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
from tests.loop_watch import BUSY, IDLE, watched
from tests.retries import Retries

_MEMORY = Path("/dev/shm")

# The files that take longest, the longest first: a worker that began one of them last would be waited for.
_LONG: Final = (
    "backends/test_one_door.py",
    "hostile/test_hostile_calls.py",
    "distributed/test_ray.py",
    "autodiff/test_loops.py",
    "backends/cupy/test_ops_on_the_fake.py",
    "session/test_deadlines.py",
    "cli/test_program.py",
    "examples/test_train_cluster.py",
    "ops/test_queue_interruptions.py",
    "kernels/test_registry.py",
    "distributed/test_processes.py",
)

# What no interpreter changes: the results of ops, what is made of graphs and files, random programs under a virtual
# clock, what a model learns, the pages. One interpreter runs these; the others, with `--one-of-several`, run what may
# differ between them: event loops, threads, processes, connections, memory, generated code.
_ALIKE: Final = (
    "autodiff",
    "backends/cupy",
    "backends/test_",
    "compiler",
    "distributed/test_ray.py",
    "examples/test_bring_a_model.py",
    "examples/test_char_model.py",
    "examples/test_gpt2.py",
    "examples/test_input_pipeline.py",
    "examples/test_mnist.py",
    "examples/test_ring_all_reduce.py",
    "examples/test_sharded_embedding.py",
    "formats",
    "graph",
    "hostile",
    "interop",
    "kernels",
    "ops",
    "protos",
    "runtime/test_branches.py",
    "runtime/test_deadlock_freedom.py",
    "saved",
    "session/test_random_constraints.py",
    "sim",
    "test_architecture.py",
    "test_blocked_loops.py",
    "test_docs.py",
    "test_every_test_ends.py",
    "test_pages.py",
    "train/monitored/test_checkpointed_input.py",
    "train/test_elastic_clusters.py",
    "train/test_gradient_accumulation.py",
    "train/test_optimizers.py",
    "train/test_training_in_a_session.py",
)

# Whole programs and clusters, which the oldest and the newest interpreter run.
_AT_THE_ENDS: Final = ("demo", "distributed", "examples", "system")

_STDERR = pytest.StashKey[TextIO]()

# An example may take as long as it takes on a busy machine: the limit is that of the test.
hypothesis.settings.register_profile("aioflow", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("aioflow")


def pytest_addoption(parser: pytest.Parser) -> None:
    """For a run beside that of another interpreter."""
    parser.addoption(
        "--one-of-several",
        choices=["newest", "between"],
        help="leave out what no interpreter changes, and between the oldest and the newest what takes whole programs",
    )
    parser.addoption(
        "--flaky-limit",
        type=int,
        help="run failing tests again; the run fails if more than so many pass then",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep the error output as it is before it is captured, and import what the first session would, on its loop."""
    config.stash[_STDERR] = os.fdopen(os.dup(2), "w")
    if (limit := config.getoption("--flaky-limit")) is not None:
        config.pluginmanager.register(Retries(limit))
    OPS.load()
    KERNELS.load()
    importlib.import_module("aioflow_numpy.backend")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the long files before the others; within a file the order remains."""
    tests = Path(__file__).parent
    if place := config.getoption("--one-of-several"):
        left_out = _ALIKE if place == "newest" else _ALIKE + _AT_THE_ENDS
        alike = {item for item in items if item.path.relative_to(tests).as_posix().startswith(left_out)}
        config.hook.pytest_deselected(items=list(alike))
        items[:] = [item for item in items if item not in alike]
    rank = {tests / name: number for number, name in enumerate(_LONG)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def pytest_collection_finish() -> None:
    """Let the collector pass over what all tests share: it looked at that again for every graph that a test drops."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close it."""
    config.stash[_STDERR].close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Watch over the teardown: a failed test has switched off every other watch, and may have left what never ends."""
    limit = float(item.config.getini("faulthandler_timeout"))
    with _unblocked(item):
        if not limit:  # -o faulthandler_timeout=0: somebody debugs
            return (yield)
        faulthandler.dump_traceback_later(limit, file=item.config.stash[_STDERR], exit=True)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Asynchronous fixtures run on the loop, too."""
    for mark in item.iter_markers("blocks_loop"):
        if not (mark.args and isinstance(mark.args[0], str)):
            pytest.fail("blocks_loop needs a reason, as in blocks_loop('it compiles in place')", pytrace=False)
    with _unblocked(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test whose loop was held."""
    with _unblocked(item):
        return (yield)


@contextmanager
def _unblocked(item: pytest.Item) -> Iterator[None]:
    """A block in which nothing may hold an event loop, unless the test says why it does."""
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
    """When the time is up, show where every task waits: the traceback alone ends in the event loop."""
    result = yield
    fail = signal.getsignal(signal.SIGALRM) if hasattr(signal, "SIGALRM") else None
    if callable(fail):

        def handler(number: int, frame: FrameType | None) -> None:
            loop = _running_loop()
            if loop is not None:
                _show_tasks(loop, item.config.stash[_STDERR])
            if loop is None or isinstance(loop, asyncio.BaseEventLoop):
                fail(number, frame)
            else:  # uvloop would log what is raised here and go on
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
    """A new default graph."""
    with af.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A folder for files that are written thousands of times: in memory, where the system has a place for that."""
    if not os.access(_MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        yield Path(folder)
