"""The parity fixture: runs a builder in aioflow and compares the results with those of TensorFlow's `compat.v1`.

TensorFlow's are stored in `tests/golden`, so that tests which only use this fixture run without TensorFlow. With
`--tensorflow` it runs, too, and the stored results are brought up to date.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import aioflow
from aioflow.kernels.resources import ResourceManager
from aioflow.testing.evaluate import evaluate
from tests.parity.golden import FOLDER, GoldenFile, Sample, inputs_digest

_FILES: Final = pytest.StashKey[dict[Path, GoldenFile]]()

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


def _listed(made: Any) -> list[Any]:
    return list(made) if isinstance(made, list | tuple) else [made]


def _dims(shape: Any) -> list[int | None] | None:
    return None if shape.ndims is None else shape.as_list()


def _placeholders(module: Any, values: list[Any], shapes: list[Any]) -> list[Any]:
    names = ["string" if v.dtype == object else v.dtype.name for v in values]
    return [module.placeholder(name, shape) for name, shape in zip(names, shapes, strict=True)]


class Parity:
    """Comparison of a builder in both systems: values, dtypes, static shapes and gradients.

    Args:
        tf: `tensorflow.compat.v1`, or None to compare with its stored results.
        golden: The stored results of the module.
        test: Name of the test.
    """

    def __init__(self, tf: Any, golden: GoldenFile, test: str) -> None:
        self.tf = tf
        self._golden = golden
        self._test = test
        self._count = 0

    def __call__(
        self,
        build: Callable[..., Any],
        *arrays: Any,
        shapes: Sequence[Any] | None = None,
        grad: bool = True,
        grad_of: Sequence[int] | None = None,
        rtol: float = 1e-5,
        atol: float = 1e-6,
        static: bool = True,
    ) -> None:
        """Compare one case.

        Args:
            build: Builder, called with the module (`tensorflow.compat.v1` or `aioflow`) and one placeholder per array.
                Its variables are initialized before.
            arrays: Values for the placeholders.
            shapes: Static shapes of the placeholders; those of the arrays by default.
            grad: Whether to compare gradients of every floating output by every floating input.
            grad_of: Indices of the outputs whose gradients are compared; all by default.
            rtol: Relative tolerance.
            atol: Absolute tolerance.
            static: Whether to compare static shapes too, also with the first dimension of each input unknown.
        """
        values = [np.asarray(a) if not isinstance(a, np.ndarray) else a for a in arrays]
        static_shapes = [v.shape for v in values] if shapes is None else list(shapes)
        opened = [(None, *s[1:]) if s else s for s in static_shapes] if static and any(static_shapes) else None
        self._count += 1
        key = f"{self._test} {self._count}"
        inputs = inputs_digest(values, static_shapes, grad, grad_of)
        if self.tf is None:
            theirs = self._stored(key, inputs)
        else:
            theirs = self._run(self.tf, self._tf_eval, build, values, static_shapes, grad, grad_of)
            theirs |= {"inputs": inputs, "opened": opened and self._static(self.tf, build, values, opened)}
            self._keep(key, theirs, rtol, atol)
        ours = self._run(aioflow, _aioflow_eval, build, values, static_shapes, grad, grad_of)
        _compare(ours, theirs, rtol, atol, static)
        if opened:
            ours_opened = self._static(aioflow, build, values, opened)
            assert ours_opened == theirs["opened"], "static shapes with open first dimensions differ"

    def either(self, build: Callable[..., Any]) -> tuple[Any, Any]:
        """Return the results of a program in aioflow and in TensorFlow, each "refused" if it fails to build or run.

        Args:
            build: Builder, called with the module, of a list of tensors.
        """
        self._count += 1
        key = f"{self._test} {self._count}"
        if self.tf is None:
            theirs = self._stored(key, inputs_digest([]))["values"]
        else:
            theirs = self._result(self.tf, build)
            self._keep_result(key, theirs)
        return self._result(aioflow, build), theirs

    def program(self, steps: Callable[..., list[Any]]) -> None:
        """Compare the results of a program of several steps.

        Args:
            steps: The program, called with the module and the function that runs fetches, with feeds, in one session.
        """
        self._count += 1
        key = f"{self._test} {self._count}"
        if self.tf is None:
            theirs = self._stored(key, inputs_digest([]))["values"]
        else:
            with self.tf.Graph().as_default(), self.tf.Session() as session:
                theirs = [_stored_array(value) for value in steps(self.tf, session.run)]
            self._keep_result(key, theirs)
        with aioflow.Graph().as_default(), aioflow.Session() as session:
            ours = [_stored_array(value) for value in steps(aioflow, session.run_sync)]
        for i, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            assert mine.dtype.kind == other.dtype.kind
            _close(mine, other, 1e-5, 1e-6, f"result {i}")

    def _result(self, module: Any, build: Callable[..., Any]) -> Any:
        refused = (ValueError, aioflow.OpError, *([] if self.tf is None else [self.tf.errors.OpError]))
        try:
            with module.Graph().as_default():
                made = build(module)
                values = self.tf.Session().run(made) if module is self.tf else evaluate(made)
        except refused:
            return "refused"
        return [_stored_array(v) for v in values]

    def _keep_result(self, key: str, theirs: Any) -> None:
        try:
            stored = self._golden[key]["values"]
            assert (stored == "refused") == (theirs == "refused")
            for mine, other in zip(stored, theirs, strict=True):
                _close(mine, other, 1e-5, 1e-6, key)
        except (KeyError, AssertionError, ValueError):
            self._golden[key] = {"inputs": inputs_digest([]), "values": theirs}

    def _stored(self, key: str, inputs: str) -> dict[str, Any]:
        try:
            entry = self._golden[key]
        except KeyError:
            entry = {"inputs": None}
        if entry["inputs"] != inputs:
            pytest.fail(f"no result of TensorFlow is stored for {key!r} with these inputs; `tox -e parity` stores it")
        return dict(entry)

    def _keep(self, key: str, theirs: dict[str, Any], rtol: float, atol: float) -> None:
        """Store a result, unless the stored one agrees: the last bits depend on the machine."""
        try:
            stored = self._golden[key]
            assert stored["inputs"] == theirs["inputs"]
            assert stored["opened"] == theirs["opened"]
            _compare(stored, theirs, rtol, atol, static=True)
        except (KeyError, AssertionError):
            self._golden[key] = theirs

    def _static(self, module: Any, build: Any, values: list[Any], shapes: list[Any]) -> Any:
        with module.Graph().as_default():
            xs = _placeholders(module, values, shapes)
            try:
                return [_dims(y.get_shape()) for y in _listed(build(module, *xs))]
            except (ValueError, TypeError):
                return "refused"

    def _run(
        self, module: Any, evaluate_in: Any, build: Any, values: list[Any], shapes: list[Any], grad: bool, grad_of: Any
    ) -> dict[str, Any]:
        with module.Graph().as_default():
            xs = _placeholders(module, values, shapes)
            ys = _listed(build(module, *xs))
            feeds = dict(zip(xs, values, strict=True))
            result = {
                "values": evaluate_in(ys, feeds),
                "dtypes": [y.dtype.base_dtype.name for y in ys],
                "shapes": [_dims(y.get_shape()) for y in ys],
                "grads": None,
            }
            if grad:
                result["grads"] = self._gradients(module, evaluate_in, xs, ys, feeds, result["values"], grad_of)
            return result

    def _gradients(
        self, module: Any, evaluate_in: Any, xs: list[Any], ys: list[Any], feeds: Any, outputs: list[Any], grad_of: Any
    ) -> list[Any]:
        rng = np.random.default_rng(7)
        seeds = [rng.standard_normal(np.shape(v)) for v in outputs]
        chosen = range(len(ys)) if grad_of is None else grad_of
        chosen = [i for i in chosen if ys[i].dtype.is_floating]
        wrt = [x for x in xs if x.dtype.is_floating]
        if not chosen or not wrt:
            return []
        grad_ys = [module.constant(seeds[i], dtype=ys[i].dtype.name) for i in chosen]
        found = module.gradients([ys[i] for i in chosen], wrt, grad_ys=grad_ys)
        dense = [None if g is None else module.convert_to_tensor(g) for g in found]
        values = iter(evaluate_in([g for g in dense if g is not None], feeds))
        return [None if g is None else next(values) for g in dense]

    def _tf_eval(self, fetches: list[Any], feeds: Any) -> list[Any]:
        if not fetches:
            return []
        with self.tf.Session() as session:
            if variables := self.tf.global_variables():
                session.run(self.tf.variables_initializer(variables))
            # NumPy arrays of kind S drop NUL bytes at the end of a string.
            found = session.run(fetches, feeds)
            return [np.asarray(v, dtype=object if isinstance(v, bytes) else None) for v in found]


def _stored_array(value: Any) -> np.ndarray[Any, Any]:
    """Return the array in a dtype that golden files can have: strings as objects."""
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "SU" else array


def _compare(ours: dict[str, Any], theirs: dict[str, Any], rtol: float, atol: float, static: bool) -> None:
    assert ours["dtypes"] == theirs["dtypes"]
    if static:
        assert ours["shapes"] == theirs["shapes"]
    for i, (mine, other) in enumerate(zip(ours["values"], theirs["values"], strict=True)):
        _close(mine, other, rtol, atol, f"output {i}")
    if theirs["grads"] is not None:
        for i, (mine, other) in enumerate(zip(ours["grads"], theirs["grads"], strict=True)):
            assert (mine is None) == (other is None), f"gradient {i}: {mine!r} against {other!r}"
            if mine is not None:
                _close(mine, other, rtol, atol, f"gradient {i}")


def _close(mine: Any, other: Any, rtol: float, atol: float, what: str) -> None:
    if isinstance(mine, Sample):  # TensorFlow's own result, compared with the stored one
        mine, other = other, mine
    if isinstance(other, Sample):
        assert np.shape(mine) == other.shape, f"{what}: shape {np.shape(mine)} against {other.shape}"
        mine, other = np.ravel(mine)[:: other.step], other.elements
    assert np.shape(mine) == np.shape(other), f"{what}: shape {np.shape(mine)} against {np.shape(other)}"
    if np.asarray(other).dtype.kind in "biuOSU":
        assert np.array_equal(mine, other), f"{what}:\n{mine}\n{other}"
        return
    wide = np.complex128 if np.asarray(other).dtype.kind == "c" else np.float64
    ours, theirs = (np.asarray(v).astype(wide) for v in (mine, other))
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol, err_msg=what)


def _aioflow_eval(fetches: list[Any], feeds: Any) -> list[Any]:
    resources = ResourceManager()
    state: dict[str, object] = {}
    if variables := aioflow.global_variables():
        initializers = [variable.initializer for variable in variables]
        evaluate([], targets=initializers, resources=resources, state=state)
    found = list(evaluate(fetches, feeds, resources=resources, state=state)) if fetches else []
    assert [v.dtype for v in found] == [y.dtype.np_dtype for y in fetches], "arrays of other dtypes than their tensors"
    return found


@pytest.fixture(scope="session")
def tf() -> Any:
    """Return `tensorflow.compat.v1`. Tests that use it run in graph mode."""
    tensorflow = pytest.importorskip("tensorflow", reason="tensorflow-cpu: pip install 'aioflow-engine[parity]'")
    return tensorflow.compat.v1


@pytest.fixture(autouse=True)
def _same_numbers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test draw the same numbers from its module's generator `RNG`, whichever tests ran before it."""
    if hasattr(request.module, "RNG"):
        monkeypatch.setattr(request.module, "RNG", np.random.default_rng(20))


@pytest.fixture(autouse=True)
def _graph_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test that uses `tf` inside a graph."""
    # Eager mode is not disabled for the process, since the tests of TensorFlow 2 need it.
    live = "parity" in request.fixturenames and request.config.getoption("--tensorflow")
    if "tf" not in request.fixturenames and not live:
        yield
        return
    with request.getfixturevalue("tf").Graph().as_default():
        yield


@pytest.fixture(scope="module")
def golden(request: pytest.FixtureRequest) -> GoldenFile:
    """Return the stored results of the module."""
    path = FOLDER / f"{request.path.stem}.xz"
    files = request.config.stash.setdefault(_FILES, {})
    return files.setdefault(path, GoldenFile(path))


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Write the results that TensorFlow computed, outside of tests: a test writes nothing into the repository."""
    if session.config.getoption("--tensorflow"):
        some = session.testsfailed or session.config.getoption("keyword") or any("::" in a for a in session.config.args)
        for file in session.config.stash.get(_FILES, {}).values():
            file.write(only_used=not some)
    return (yield)


@pytest.fixture
def parity(request: pytest.FixtureRequest, golden: GoldenFile) -> Parity:
    """Return the comparison of builders in both systems."""
    tf = request.getfixturevalue("tf") if request.config.getoption("--tensorflow") else None
    return Parity(tf, golden, request.node.name)


@pytest.fixture
def without_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the engines that compute ONNX nodes without a translation."""
    monkeypatch.setattr("aioflow.interop.onnx.engine_nodes.declared_engines", dict)
