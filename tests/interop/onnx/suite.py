"""The onnx package's own backend tests, run in this process: `python -m tests.interop.onnx.suite --op Gemm`.

The command prints the number of passing tests per op or per kind of test, and each failure with its error.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
import time
import traceback
import unittest
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from aioflow.interop.onnx.backend import AioflowBackend, AioflowRep

_OPEN: list[AioflowRep] = []


class ClosingBackend(AioflowBackend):
    """The backend, with a record of prepared models to close after each test."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> AioflowRep:
        rep = super().prepare(model, device, **kwargs)
        _OPEN.append(rep)
        return rep


@dataclass(frozen=True)
class Case:
    """One test of the suite.

    Attributes:
        kind: "Node", "Real", "Simple", "PyTorchConverted" or "PyTorchOperator".
        name: Name without the device, such as "test_gemm_beta".
        models: A list of its model, which is None until the test has run.
        call: Function that runs the test.
    """

    kind: str
    name: str
    models: list[Any]
    call: Callable[[], None]

    @property
    def op(self) -> str:
        """Op that a node test is about, or the kind of any other test."""
        model = self.models[0]
        if self.kind != "Node" or not isinstance(model, ModelProto):
            return self.kind
        return "+".join(dict.fromkeys(node.op_type for node in model.graph.node)) if _single(model) else self._by_name()

    def _by_name(self) -> str:
        return "expanded" if self.name.endswith("_expanded") else "several ops"


def _single(model: ModelProto) -> bool:
    return len({node.op_type for node in model.graph.node}) == 1


@lru_cache(maxsize=1)
def cases() -> tuple[Case, ...]:
    """Return every test for the CPU, in order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # raised while the suite creates its data
        items: Any = Runner(ClosingBackend)._test_items
    found = []
    for kind, tests in items.items():
        for name, item in tests.items():
            if name.endswith("_cpu"):
                found.append(_case(kind.removesuffix("Model"), name.removesuffix("_cpu"), item))
    return tuple(found)


def _case(kind: str, name: str, item: Any) -> Case:
    def call() -> None:
        try:
            with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
                item.func(unittest.TestCase())
        finally:
            while _OPEN:
                _OPEN.pop().close()

    return Case(kind, name, item.proto, call)


@contextlib.contextmanager
def models_folder() -> Iterator[None]:
    """Set ONNX_MODELS to a temporary folder for the data that the suite writes for its bundled models."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("ONNX_MODELS")
        os.environ["ONNX_MODELS"] = folder
        try:
            yield
        finally:
            os.environ.pop("ONNX_MODELS")
            if before is not None:
                os.environ["ONNX_MODELS"] = before


def chosen(arguments: argparse.Namespace) -> list[Case]:
    """Return the tests that the command line selects."""
    found = [c for c in cases() if not arguments.kind or c.kind in arguments.kind]
    if arguments.name:
        found = [c for c in found if any(part in c.name for part in arguments.name)]
    if arguments.op:
        wanted = set(arguments.op)
        tables = node_models()
        found = [c for c in found if wanted & tables.get(c.name, frozenset())]
    if arguments.no_expanded:
        found = [c for c in found if "_expanded" not in c.name]
    return found


@lru_cache(maxsize=1)
def node_models() -> Mapping[str, frozenset[str]]:
    """Return the ops of the model of each node test, by the name of the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = load_model_tests(kind="node")
    found = {}
    for test in tests:
        if test.model is not None:
            found[test.name] = frozenset(node.op_type for node in test.model.graph.node)
    return found


def outcome(case: Case) -> str | None:
    """Run a test. Return None if it passes, otherwise the error in one line."""
    try:
        case.call()
    except unittest.SkipTest as skipped:
        return f"skipped: {skipped}"
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {' | '.join(lines[:6])}"
    return None


def main() -> int:
    """Run the selected tests and print their results. Return 1 if any test fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", action="append", help="tests of nodes of this op; may be given again")
    parser.add_argument("--name", action="append", help="tests with this in their name; may be given again")
    parser.add_argument("--kind", action="append", help="Node, Real, Simple, PyTorchConverted or PyTorchOperator")
    parser.add_argument("--no-expanded", action="store_true", help="without the tests of functions' bodies")
    parser.add_argument("--trace", action="store_true", help="the whole traceback of each failure")
    parser.add_argument("--summary", action="store_true", help="the table alone")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    passed: defaultdict[str, int] = defaultdict(int)
    failed: defaultdict[str, list[str]] = defaultdict(list)
    begun = time.perf_counter()
    with models_folder():
        for case in chosen(arguments):
            wrong = outcome(case)
            if wrong is None:
                passed[case.op] += 1
                continue
            failed[case.op].append(f"{case.name}: {wrong[:300]}")
            if arguments.trace:
                _trace(case)
    for op in sorted({*passed, *failed}):
        print(f"{op:32} {passed[op]:4} passed {len(failed[op]):4} failed")
        if not arguments.summary:
            print("".join(f"    {line}\n" for line in failed[op]), end="")
    bad = sum(map(len, failed.values()))
    good = sum(passed.values())
    print(f"{good} of {good + bad} passed in {time.perf_counter() - begun:.1f} s (onnx {onnx.__version__})")
    return int(bool(bad))


def _trace(case: Case) -> None:
    try:
        case.call()
    except Exception:
        traceback.print_exc(file=sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
