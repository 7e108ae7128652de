"""Error messages for beginners: they name the faulty thing and show what to do instead."""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import aioflow as af
from aioflow import cli, errors
from aioflow.formats.protobuf import write_piece

HERE = __file__


def message(build: Callable[[], Any], kind: type[Exception] = errors.OpError) -> str:
    with pytest.raises(kind) as caught:
        build()
    return str(caught.value)


def run(fetches: Any, feeds: Any = None) -> Any:
    with af.Session() as session:
        return session.run_sync(fetches, feeds)


# ── dtypes ───────────────────────────────────────────────────────────────────────────────────────────────────────────

MIXED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "two tensors": lambda x, n, v: af.multiply(x, n),
    "an operator": lambda x, n, v: x * n,
    "a tensor and a variable": lambda x, n, v: n + v,
    "a variable and a tensor": lambda x, n, v: v + n,
    "a matrix product": lambda x, n, v: af.matmul(x, n),
    "a list": lambda x, n, v: af.add_n([x, x, n]),
    "a stack": lambda x, n, v: af.stack([x, n]),
    "a stack of a variable": lambda x, n, v: af.stack([v, n]),
    "a join": lambda x, n, v: af.concat([x, n], 0),
    "a list as an operand": lambda x, n, v: af.nn.relu([x, n]),
    "a choice": lambda x, n, v: af.where(x > 0, x, n),
    "logic": lambda x, n, v: n & x,
    "a branch": lambda x, n, v: af.cond(af.constant(True), lambda: x, lambda: n),
}


@pytest.mark.parametrize("case", MIXED)
def test_mixed_dtypes_error_names_both_and_suggests_cast(case: str) -> None:
    x, n = af.placeholder("float32", [2, 2], name="x"), af.placeholder("int32", [2, 2], name="n")
    v = af.Variable([[1.0, 2.0], [3.0, 4.0]], name="v")
    error = errors.DTypeError
    text = message(lambda: MIXED[case](x, n, v), error)
    first = "'v" if "variable" in case else "'x:0'" if case != "a branch" else "'cond/"
    assert first in text
    assert ("'n:0'" if case != "a branch" else "int32") in text
    assert "float32" in text
    assert "int32" in text
    assert "aioflow.cast" in text


def test_assignment_of_another_dtype_names_the_variable() -> None:
    v, n = af.Variable([1.0, 2.0], name="weights"), af.constant([1, 2], name="n")
    for update in (v.assign, v.assign_add):
        text = message(lambda update=update: update(n), errors.DTypeError)  # type: ignore[misc]  # bound at once
        assert "'weights'" in text
        assert "'n:0'" in text
        assert "aioflow.cast" in text


def test_number_that_does_not_fit_the_other_operand() -> None:
    n = af.placeholder("int32", [2], name="n")
    text = message(lambda: n * 2.5, errors.DTypeError)
    assert "2.5" in text
    assert "'n:0' is int32" in text
    assert "aioflow.cast" in text


def test_error_for_a_dtype_that_an_input_does_not_allow() -> None:
    x = af.placeholder("float32", [2], name="x")
    text = message(lambda: af.gather(x, x), errors.DTypeError)
    assert "'indices' of GatherV2" in text
    assert "'x:0' is float32" in text
    assert "int32, int64" in text
    assert "aioflow.cast" in text


# ── nodes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_error_names_an_unnamed_node_by_its_op(graph: af.Graph) -> None:
    x = af.placeholder("float32", [2, 3])
    for build in (
        lambda: af.matmul(x, x),
        lambda: af.add(x, np.zeros((4, 5), np.float32)),
        lambda: af.nn.softmax_cross_entropy_with_logits_v2(af.zeros([3, 4]), x),
    ):
        text = message(build)
        assert "/'" not in text
        assert "(op " in text or "op:  " in text
        assert HERE in text
    assert "node:     'product' (op MatMul)" in message(lambda: af.matmul(x, x, name="product"))
    assert "  op:       AddV2\n" in message(lambda: af.extend.apply_op("AddV2", x, np.zeros((4, 5), np.float32)))
    graph.finalize()
    text = message(lambda: af.matmul(x, x, transpose_b=True))
    assert "new node" not in text
    assert "MatMul" in text
    assert "finalized" in text
    assert HERE in text
    with pytest.raises(errors.FailedPreconditionError) as caught:
        x.op.add_control_input(x.op)
    assert "new node" not in str(caught.value)


# ── graphs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_error_distinguishes_two_graphs(graph: af.Graph) -> None:
    here = af.placeholder("float32", [2, 2], name="here")
    other = af.Graph()
    with other.as_default():
        there = af.placeholder("float32", [2, 2], name="there")
    for build in (
        lambda: af.matmul(here, there),
        lambda: af.group(here, there),
        lambda: af.add_n([here, there]),
        lambda: here.op.add_control_input(there.op),
        lambda: here.op.update_input(0, there) if here.op.inputs else af.identity(here).op.update_input(0, there),
        lambda: run(there),
        lambda: graph.as_graph_element(there.op),
        lambda: run(here, {there: 1.0}),
    ):
        text = message(build, errors.InvalidArgumentError)
        assert " at 0x" not in text
        assert repr(graph) in text
        assert repr(other) in text
        assert "'there" in text
    assert f"made at {HERE}" in repr(other)
    assert "1 node" in repr(other)
    assert repr(other) != repr(graph)


def test_repr_of_the_default_graph() -> None:
    from aioflow.graph.default_graph import _PROCESS

    assert "default" in repr(_PROCESS.graph)


async def test_repr_of_a_session(graph: af.Graph) -> None:
    session = af.Session()
    assert repr(session) == f"<aioflow.Session '', open, of {graph!r}>"
    await session.close()
    assert repr(session) == f"<aioflow.Session '', closed, of {graph!r}>"


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_unknown_op_error_suggests_similar_names() -> None:
    x = af.zeros([1, 1])
    assert "did you mean 'MatMul'" in message(lambda: af.extend.apply_op("Matmul", x, x))
    assert "did you mean 'MatMul'" in message(lambda: af.raw_ops.MatMull(a=x, b=x), AttributeError)
    node = af.NodeDef("a", "Placeholdr", (), "", {"dtype": af.float32})
    assert "did you mean 'Placeholder'" in message(lambda: af.import_graph_def(af.GraphDef((node,))))
    assert "did you mean" not in message(lambda: af.extend.apply_op("Zzzzzz"))


@pytest.mark.parametrize("form", ["run", "plan"])
def test_feed_by_node_name_suggests_its_tensors(form: str) -> None:
    x = af.placeholder("float32", [], name="x")

    def fed(key: Any) -> Callable[[], Any]:
        if form == "run":
            return lambda: run(x, {key: 1.0})
        return lambda: af.Session().plan(x, [key])

    assert "did you mean 'x:0'?" in message(fed("x"))
    assert "did you mean 'x:0'?" in message(fed("X"))
    assert "did you mean 'x:0'?" in message(fed("X:0"))
    assert "did you mean 'x:0'?" in message(fed(x.op))
    af.split(af.zeros([2]), 2, name="parts")
    assert "did you mean 'parts:0' or 'parts:1'?" in message(fed("parts"))
    af.no_op(name="nothing")
    assert "'nothing' has no outputs" in message(fed("nothing"))
    assert "did you mean" not in message(fed("zzzzzzz"))


@pytest.mark.parametrize(("wrong", "right"), [("yy", "y"), ("yy:0", "y:0"), ("Y:0", "y:0")])
def test_short_names_have_suggestions_too(wrong: str, right: str) -> None:
    af.constant(1.0, name="y")
    assert f"did you mean {right!r}?" in message(lambda: run(wrong))


def test_misspelled_graph_elements_suggest_similar_names(graph: af.Graph) -> None:
    af.placeholder("float32", [], name="layer/weights")
    assert "did you mean 'layer/weights'?" in message(lambda: graph.as_graph_element("layer/wieghts"))
    assert "did you mean 'layer/weights:0'?" in message(lambda: graph.as_graph_element("layer/wieghts:0"))
    assert "did you mean 'layer/weights'?" in message(lambda: graph.get_operation_by_name("layer/weights:0"))
    assert "has 1 output" in message(lambda: graph.get_tensor_by_name("layer/weights:1"))


MISSING = {
    "distributions": "aioflow has no 'distributions' yet: see docs/compatibility.md",
    "math.special": "aioflow.math has no 'special' yet: see docs/compatibility.md",
    "placeholders": "module 'aioflow' has no attribute 'placeholders'; did you mean 'placeholder'",
    "Placeholder": "module 'aioflow' has no attribute 'Placeholder'; did you mean 'placeholder'",
    "relu": "module 'aioflow' has no attribute 'relu'; did you mean 'aioflow.nn.relu'?",
    "zzzzzzzz": "module 'aioflow' has no attribute 'zzzzzzzz'",
    "__wrapped__": "module 'aioflow' has no attribute '__wrapped__'",
    "nn.dilation2d": "aioflow.nn has no 'dilation2d' yet: see docs/compatibility.md",
    "nn.reul": "module 'aioflow.nn' has no attribute 'reul'; did you mean 'relu'?",
    "train.VocabInfo": "aioflow.train has no 'VocabInfo' yet: see docs/compatibility.md",
    "math.sgin": "module 'aioflow.math' has no attribute 'sgin'; did you mean 'sin', 'sinh' or 'sign'?",
    "errors.NotFoundErr": "module 'aioflow.errors' has no attribute 'NotFoundErr'; did you mean 'NotFoundError'",
    "raw_ops.Matmul": "no op 'Matmul'",
}


@pytest.mark.parametrize("name", MISSING)
def test_missing_attribute_of_a_namespace(name: str) -> None:
    where, _, last = name.rpartition(".")
    module = getattr(af, where) if where else af
    assert not hasattr(module, last)
    assert getattr(module, last, None) is None
    with pytest.raises(AttributeError) as caught:
        getattr(module, last)
    text = str(caught.value)
    assert text.startswith(MISSING[name])


def test_every_namespace_rejects_unknown_names() -> None:
    for name in sorted(n for n in af.__all__ if inspect.ismodule(getattr(af, n))):
        with pytest.raises(AttributeError, match=r"qqqqqqq"):
            _ = getattr(af, name).qqqqqqq


# ── TensorFlow graphs ────────────────────────────────────────────────────────────────────────────────────────────────

_NODE = write_piece(
    1, write_piece(1, b"x") + write_piece(2, b"Placeholder") + write_piece(5, b"\n\x05dtype\x12\x020\x01")
)
_META = write_piece(1, write_piece(2, write_piece(1, write_piece(1, b"Const")))) + write_piece(2, _NODE)
FOREIGN = {
    "model.meta": (_META, "train.import_meta_graph reads"),
    "model.txt": (b"# by hand\nmeta_info_def {\n}\n", "train.import_meta_graph reads"),
    "saved_model.pb": (b"\x08\x01" + write_piece(2, _META), "interop.tensorflow.load_saved_model reads"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_meta_graphs_and_saved_models_are_recognized(name: str, tmp_path: Path) -> None:
    data, what = FOREIGN[name]
    file = tmp_path / name
    file.write_bytes(data)
    assert what in message(lambda: af.GraphDef.FromString(data), errors.InvalidArgumentError)
    text = message(lambda: af.train.read_graph(file), errors.InvalidArgumentError)
    assert what in text
    assert str(file) in text


@pytest.mark.parametrize("name", ["model.meta", "model.txt"])
def test_commands_name_the_reader_of_meta_graphs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, what = FOREIGN[name]
    (tmp_path / name).write_bytes(data)
    for command in ("explain", "run"):
        assert cli.main([command, str(tmp_path / name)]) == 2
        assert what in capsys.readouterr().err


def test_invalid_graph_definitions_are_rejected() -> None:
    assert "train.read_graph" in message(lambda: af.import_graph_def("graph.pb"), errors.DTypeError)  # type: ignore[call-overload]  # wrong on purpose
    for nothing in ("", "hello", "[1,"):
        assert "not a graph definition of aioflow" in message(lambda n=nothing: af.GraphDef.from_json(n))  # type: ignore[misc]  # bound at once
    for data in (b"hello", b"\n", b"\x08\x01", b"{}", b"nodes: 3", b"\x89PNG\r\n", b"[1]"):
        assert "not a" in message(lambda data=data: af.GraphDef.FromString(data), errors.OpError)  # type: ignore[misc]  # bound at once
    definition: Any = af.GraphDef()
    assert not hasattr(definition, "anything")
    assert copy.deepcopy(definition) == definition


# ── tensors used as values ───────────────────────────────────────────────────────────────────────────────────────────

USES: dict[str, Callable[[Any], Any]] = {
    "np.array": np.array,
    "np.asarray": np.asarray,
    "np.array of a list": lambda t: np.array([t, t]),
    "np.sin": np.sin,
    "np.mean": np.mean,
    "np.dot": lambda t: np.dot(np.ones((2, 2)), t),
    "np.concatenate": lambda t: np.concatenate([t, t]),
    "np.testing": lambda t: np.testing.assert_allclose(t, 1.0),
    "float": float,
    "int": int,
    "complex": complex,
    "math": math.sqrt,
    "bool": bool,
    "if": lambda t: 1 if t else 2,
    "and": lambda t: t and 1,
    "not": lambda t: not t,
    "in it": lambda t: 1 in t,
    "a format": lambda t: f"{t:.2f}",
    "max": lambda t: max(t, t * 2),
    "chained comparison": lambda t: 0 < t < 1,
}


@pytest.mark.parametrize("kind", ["tensor", "variable"])
@pytest.mark.parametrize("use", USES)
def test_tensor_used_as_a_value_is_rejected(use: str, kind: str) -> None:
    x: Any = af.placeholder("float32", [2, 2], name="x") if kind == "tensor" else af.Variable(np.ones(2), name="x")
    text = message(lambda: USES[use](x), errors.DTypeError)
    assert "await session.run" in text
    assert HERE in text
    if use not in ("max", "chained comparison"):
        assert "'x" in text


def test_composite_tensors_cannot_become_arrays() -> None:
    sparse = af.SparseTensor([[0, 0]], [1.0], [1, 1])
    slices = af.IndexedSlices(af.constant([1.0]), af.constant([0]))
    array = af.TensorArray("float32", 2)
    for value in (slices, array):
        assert "await session.run" in message(lambda value=value: np.array(value), errors.DTypeError)  # type: ignore[misc]  # bound at once
    assert "sparse.to_dense" in message(lambda: np.array(sparse), errors.DTypeError)


def test_supported_python_operations_on_tensors() -> None:
    x, v = af.placeholder("float32", [2], name="x"), af.Variable([1.0, 2.0], name="v")
    for t in (x, v):
        assert t in [x, v]
        assert t not in [1, "x"]
        assert {t: 1}[t] == 1
        assert f"{t}" == str(t) == repr(t)
        assert f"{t!r:>100}".endswith(repr(t))
    assert [row.shape for row in x] == [(), ()]
    for product in (np.ones(2, np.float32) * x, np.float32(2) * x, x * np.float32(2), np.ones(2, np.float32) - v):
        assert isinstance(product, af.Tensor)


def test_tensor_of_unknown_length_cannot_be_iterated() -> None:
    x = af.placeholder("float32", name="x")
    text = message(lambda: list(x), errors.DTypeError)
    assert "first dimension" in text
    assert "aioflow.map_fn" in text
    text = message(lambda: len(x), errors.DTypeError)
    assert "x.shape" in text or ".shape" in text


# ── cancelled steps ──────────────────────────────────────────────────────────────────────────────────────────────────


def waiting_step() -> af.Tensor:
    queue = af.FIFOQueue(1, "float32", [[]], name="letters")
    taken: af.Tensor = queue.dequeue(name="taken")
    return af.multiply(taken, 2.0, name="result")


async def begun(session: af.Session) -> None:
    async with asyncio.timeout(60):
        while not (report := await session.stuck_report()) or not report[0].waiting:  # noqa: ASYNC110  # no event signals this
            await asyncio.sleep(0)


async def end_of(run: Awaitable[Any]) -> BaseException:
    try:
        raise AssertionError(await run)
    except BaseException as error:
        return error


async def test_note_of_a_cancelled_run_names_its_fetches() -> None:
    result, other = waiting_step(), af.no_op(name="other")
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        task = tg.create_task(end_of(session.run([result, other])))
        await begun(session)
        task.cancel("enough")
        error = await task
        assert type(error) is asyncio.CancelledError
        assert error.args == ("enough",)
        (note,) = error.__notes__
        assert note.startswith("aioflow: the step for 'result:0', 'other' was cancelled after ")
        assert "; waiting for taken on queue 'letters'" in note


async def test_note_of_a_run_cancelled_by_a_timeout() -> None:
    result = waiting_step()
    async with af.Session() as session:
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(0.05):
                await session.run({"a": result})
        cause = caught.value.__cause__
        assert cause is not None
        assert "the step for 'result:0' was cancelled" in cause.__notes__[0]


async def test_closing_the_session_names_the_running_step() -> None:
    result = waiting_step()
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        task = tg.create_task(end_of(session.run(result)))
        await begun(session)
        await session.close()
        error = await task
        assert isinstance(error, errors.CancelledError)
        assert "the session was closed while the step for 'result:0' ran; waiting for taken on" in str(error)


async def test_note_of_a_step_with_many_fetches_names_three() -> None:
    many = [waiting_step() for _ in range(5)]
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        task = tg.create_task(end_of(session.run(many)))
        await begun(session)
        task.cancel()
        (note,) = (await task).__notes__
        assert "the step for 'result:0', 'result_1:0', 'result_2:0' and 2 more was cancelled" in note


async def test_note_of_a_step_cancelled_during_compilation() -> None:
    result = af.constant(1.0, name="one")
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        held = asyncio.Event()

        async def hold(*_: Any) -> Any:
            held.set()
            await asyncio.Event().wait()

        with mock.patch.object(session._cache, "_compile", hold):
            task = tg.create_task(end_of(session.run(result)))
            await held.wait()
            task.cancel()
            (note,) = (await task).__notes__
        assert note == "aioflow: a step for 'one:0' was cancelled while it was being compiled"


async def test_closing_the_session_names_the_running_stream() -> None:
    result = waiting_step()
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        task = tg.create_task(end_of(anext(session.stream(result, prefetch=2))))
        await begun(session)
        await session.close()
        error = await task
        assert isinstance(error, errors.CancelledError)
        assert "the session was closed while" in str(error)
        assert "'result:0'" in str(error)


# ── causes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "build",
    [
        lambda: af.raw_ops.Concat(concat_dim=0, values=[]),
        lambda: af.raw_ops.Cast(x=1.0, DstT="no such dtype"),
        lambda: af.raw_ops.MatMul(a=[["a"]], b=[["b"]]),
    ],
)
def test_causes_of_errors_have_no_cycle(build: Callable[[], Any]) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        build()
    causes: list[BaseException] = []
    error: BaseException | None = caught.value
    while error is not None:
        assert error not in causes
        causes.append(error)
        error = error.__cause__
