"""The pages of results: each table is made by its own program, stored in `benchmarks/history`, and read from there.

The programs run one after another. A program that fails, or whose packages are missing, is reported and does not end
the others; its page keeps the last stored table, with the commit and the environment of that table.
"""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.history import Run, compared, latest
from benchmarks.kernels import NUMPY_ALONE, fresh_environment, have_onednn
from benchmarks.tables import Printer, Row, Table, markdown, read

__all__ = ["PAGES", "Fault", "Page", "Section", "missing", "page_text", "run_program", "run_sections", "slower"]

_ROOT: Final = Path(__file__).parent.parent
_TENSORFLOW: Final = ("tensorflow",)
_ONNXRUNTIME: Final = ("onnx", "onnxruntime")


@dataclass(frozen=True, slots=True)
class Section:
    """A table of a page.

    Attributes:
        name: Name of the table in the history, and on the command line.
        title: Heading of the section.
        arguments: Arguments of Python for the program that prints the table.
        environment: Additional environment variables.
        needs: Modules that the program needs; "onednn" is the library.
    """

    name: str
    title: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A file of results: `benchmarks/RESULTS*.md`."""

    file: str
    title: str
    text: str
    sections: Sequence[Section]


class Fault(NamedTuple):
    """A section without a complete new table. Missing packages are no failures."""

    text: str
    is_failure: bool


def _module(name: str, *options: str) -> tuple[str, ...]:
    return ("-m", f"benchmarks.{name}", *options)


_STEPS: Final = ("-m", "benchmarks", "--steps")
_DELEGATE: Final = ("--delegate", "onnxruntime")

PAGES: Final = (
    Page(
        "RESULTS.md",
        "Compared with TensorFlow",
        "Steps of aioflow and of TensorFlow's session in one process, in alternating rounds. Times are medians; "
        "the ratio is aioflow's time divided by the other one, so less is better. For chains against NumPy, two "
        "devices and bytes between processes, it is the speedup.",
        (
            Section("steps-onednn", "Steps, oneDNN", _STEPS, needs=(*_TENSORFLOW, "onednn")),
            Section("nets-onednn", "Image nets, one picture, oneDNN", _module("nets"), needs=(*_TENSORFLOW, "onednn")),
            Section(
                "nets-onnxruntime",
                "Image nets, one picture, onnxruntime as the engine",
                _module("nets", *_DELEGATE),
                needs=(*_TENSORFLOW, *_ONNXRUNTIME),
            ),
            Section("steps-numpy", "Steps, NumPy alone", _STEPS, NUMPY_ALONE, _TENSORFLOW),
            Section("nets-numpy", "Image nets, one picture, NumPy alone", _module("nets"), NUMPY_ALONE, _TENSORFLOW),
            Section("lag", "The loop's lag while a network trains in it", _module("lag"), needs=("uvloop",)),
            Section("loading", "The loop's lag while a model is loaded", _module("loading_lag"), needs=_ONNXRUNTIME),
            Section("imports", "Import", _module("imports")),
            Section("mixed-precision", "Training in less memory", _module("mixed_precision"), NUMPY_ALONE),
            Section("others", "Input, memory, compilation, transfers", _module("others"), needs=_TENSORFLOW),
        ),
    ),
    Page(
        "RESULTS_DEVICES.md",
        "Processes and devices",
        "Steps across processes, beside TensorFlow's servers; placement, schedules, parameter servers and "
        "recovery. Processor times are those of all processes together.",
        (
            Section("remote", "Steps across processes", _module("remote"), needs=_TENSORFLOW),
            Section("shared-memory", "100 MB from another process", _module("shared_memory"), needs=_TENSORFLOW),
            Section("null-steps", "A step in which each worker does nothing", _module("null_steps"), needs=_TENSORFLOW),
            Section("parameter-server", "Asynchronous training", _module("parameter_server"), needs=_TENSORFLOW),
            Section("embedding", "Partitioned embedding", _module("sharded_embedding"), needs=_TENSORFLOW),
            Section("recovery", "Recovery from a killed parameter server", _module("recovery")),
            Section("placement", "Placement", _module("placement")),
            Section("scheduling", "Values sent when they are needed", _module("scheduling")),
        ),
    ),
    Page(
        "RESULTS_GENERATION.md",
        "Generation, and weights of a GiB",
        "Tokens per second of `examples/gpt2` beside the same model as a NumPy loop, both with one thread of the "
        "BLAS, and the cost of a checkpoint of 1 GiB: 16 matrices of float32, assigned and used once in a product"
        " each. The peak is that of the process, with the pages of the mapped file.",
        (Section("generation", "Tokens and weights", _module("generation"), {"OPENBLAS_NUM_THREADS": "1"}),),
    ),
    Page(
        "RESULTS_MODELS.md",
        "Models of other programs",
        "The import of models, and calls beside onnxruntime in the same process, batch 1, with as many threads.",
        (
            Section(
                "models-onnxruntime",
                "onnxruntime as aioflow's engine",
                _module("models", "calls", *_DELEGATE),
                needs=_ONNXRUNTIME,
            ),
            Section("models", "aioflow's kernels", _module("models"), needs=_ONNXRUNTIME),
        ),
    ),
    Page(
        "RESULTS_SERVING.md",
        "Single rows in one process",
        "Rows of an MLP 784-512-512-10, one by one, from 64 coroutines on one event loop. All engines have the "
        "same weights and take turns. The lag is that of a task that sleeps for a millisecond meanwhile.",
        (
            Section("serving", "asyncio's loop", _module("serving"), needs=(*_TENSORFLOW, *_ONNXRUNTIME)),
            Section("serving-uvloop", "uvloop", _module("serving", "--uvloop"), needs=(*_TENSORFLOW, *_ONNXRUNTIME)),
        ),
    ),
    Page(
        "RESULTS_SERVING_HTTP.md",
        "A model behind HTTP",
        "Single rows to an MLP 784-512-512-10 with binary tensors, from 64 connections of another process. All "
        "servers parse and write by the same functions, and share the cores with the load.",
        (
            Section(
                "serving-http",
                "Servers",
                _module("serving_http"),
                needs=(*_ONNXRUNTIME, "starlette", "uvicorn", "granian", "psutil"),
            ),
        ),
    ),
)


def missing(section: Section) -> list[str]:
    """Return the modules and libraries that the section needs and that are not installed."""
    return [each for each in section.needs if not (have_onednn() if each == "onednn" else find_spec(each))]


def run_sections(
    sections: Sequence[Section],
    run: Run,
    options: Namespace,
    program: Callable[[Section], Iterator[str | int]],
    store: Callable[[Run], object],
) -> Iterator[Fault]:
    """Run the programs of these sections, and yield what failed or was not measured.

    Args:
        sections: Sections to measure.
        run: Where to add the tables.
        options: The options of `Printer`.
        program: Function that yields the lines of a program, and then its exit status, like `run_program`.
        store: Called with the run after each table, so that an interrupted run keeps what it has measured.
    """
    for section in sections:
        print(f"\n## {section.title}\n", flush=True)
        if absent := missing(section):
            yield Fault(f"{section.name}: not installed: {', '.join(absent)}", False)
            continue
        table, status = _measured(section, options, program)
        if table.rows:
            run.tables[section.name] = table
            store(run)
        if status:
            yield Fault(f"{section.name}: `{_command(section)}` failed with exit status {status}", True)
        elif not table.rows:
            yield Fault(f"{section.name}: `{_command(section)}` measured nothing", False)


def _measured(
    section: Section, options: Namespace, program: Callable[[Section], Iterator[str | int]]
) -> tuple[Table, int]:
    """Return the table of a section, and the exit status of its program."""
    printer, status = Printer(options), 0
    for line in program(section):
        if isinstance(line, int):
            status = line
        elif isinstance(found := read(line), Row):
            printer.row(found)
        elif found is not None:
            printer.note(found)
        else:
            print(line, file=sys.stderr, flush=True)
    if status:
        printer.table.notes.append(f"`{_command(section)}` failed, so rows may be missing.")
    return printer.table, status


def _command(section: Section) -> str:
    return f"python {' '.join(section.arguments)}"


def slower(run: Run, stored: Sequence[Run]) -> Iterator[str]:
    """Yield the rows of a run that are slower than in the latest stored table of the same name."""
    for name, table in run.tables.items():
        if (before := latest(name, stored)) is not None:
            yield from compared(before.tables[name], table)


def run_program(section: Section) -> Iterator[str | int]:
    """Yield the lines that the section's program prints, as they arrive, and then its exit status."""
    with subprocess.Popen(
        [sys.executable, *section.arguments, "--json"],
        cwd=_ROOT,
        env={**fresh_environment(), **section.environment},
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        if program.stdout is not None:
            for line in program.stdout:
                yield line.rstrip("\n")
    yield program.returncode


def page_text(page: Page, stored: Sequence[Run]) -> str:
    """Return the text of a page, with the latest stored table of each section and its environment."""
    found = [(section, run) for section in page.sections if (run := latest(section.name, stored)) is not None]
    heads = list(dict.fromkeys(run.head() for _, run in found))
    text = [f"# {page.title}", page.text, *(heads if len(heads) == 1 else [])]
    for section, run in found:
        table = run.tables[section.name]
        text += [f"## {section.title}", *([run.head()] if len(heads) > 1 else []), *table.notes, markdown(table.rows)]
    return "\n\n".join([*text, "Made by `python -m benchmarks`."]) + "\n"
