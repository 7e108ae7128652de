"""Arrays of any byte order and layout, whose numbers stay the same through every entry and exit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import aioflow as af
from aioflow.errors import DTypeError
from aioflow.interop import onnx
from aioflow.interop.safetensors import save
from aioflow.interop.tensorflow import load_saved_model, save_saved_model
from aioflow.serve.protocol import InferResponse, encode_response

_NUMBERS = np.array([[1.5, -2.0, 3.25], [4.0, 5.5, -6.75]])


def _layouts() -> Iterator[tuple[str, Any]]:
    for dtype in ("f4", "f8", "f2", "i4", "i8", "u2", "c8"):
        numbers = np.abs(_NUMBERS).astype(dtype)
        yield f"{dtype}-big-endian", numbers.astype(f">{dtype}")
        yield f"{dtype}-little-endian", numbers.astype(f"<{dtype}")
    single = _NUMBERS.astype("f4")
    unaligned = np.ndarray(single.shape, "f4", bytearray(single.nbytes + 1), 1)
    unaligned[...] = single
    frozen = single.copy()
    frozen.flags.writeable = False
    yield "unaligned", unaligned
    yield "read-only", frozen
    yield "zero-strided", np.broadcast_to(np.float32(1.5), (2, 3))
    yield "zero-strided-big-endian", np.broadcast_to(np.array(1.5, ">f4"), (2, 3))
    yield "fortran-ordered", np.asfortranarray(single)
    yield "fortran-ordered-big-endian", np.asfortranarray(single.astype(">f4"))
    yield "reversed", single[::-1, ::-1]
    yield "big-endian-scalar", np.array(1.5, ">f4")
    yield "empty-big-endian", np.zeros((0, 3), ">f4")


_LAYOUTS = dict(_layouts())


async def _run(fetch: Any, feeds: Any = None, before: Any = None) -> Any:
    async with af.Session() as session:
        if before is not None:
            await session.run(before)
        return await session.run(fetch, feeds)


def _dtype(array: Any) -> Any:
    return af.as_dtype(array.dtype.newbyteorder("="))


async def _constant(array: Any, folder: Path) -> Any:
    return await _run(af.constant(array))


async def _constant_of_a_dtype(array: Any, folder: Path) -> Any:
    return await _run(af.constant(array, dtype=_dtype(array)))


async def _feed(array: Any, folder: Path) -> Any:
    x = af.placeholder(_dtype(array), None)
    return await _run(af.identity(x), {x: array})


async def _variable(array: Any, folder: Path) -> Any:
    variable = af.Variable(array)
    return await _run(variable, before=variable.initializer)


async def _assign(array: Any, folder: Path) -> Any:
    variable = af.Variable(np.zeros(array.shape, array.dtype.newbyteorder("=")))
    return await _run(af.assign(variable, array), before=variable.initializer)


async def _bits(array: Any, folder: Path) -> Any:
    x, dtype = af.placeholder(_dtype(array), None), _dtype(array)
    return await _run(af.bitcast(af.bitcast(x, af.int8), dtype), {x: array})


async def _message(array: Any, folder: Path) -> Any:
    x = af.placeholder(_dtype(array), None)
    return await _run(af.parse_tensor(af.serialize_tensor(x), _dtype(array)), {x: array})


async def _function(array: Any, folder: Path) -> Any:
    return await _run(af.py_func(lambda: array, [], _dtype(array)))


async def _coroutine(array: Any, folder: Path) -> Any:
    async def give() -> Any:
        return array

    return await _run(af.py_coroutine(give, [], _dtype(array)))


async def _iterator(array: Any, folder: Path) -> Any:
    async def give() -> Any:
        yield array

    return await _run(af.from_async_iterator(give, _dtype(array)))


async def _queue(array: Any, folder: Path) -> Any:
    queue = af.FIFOQueue(1, [_dtype(array)])
    return await _run(queue.dequeue(), before=queue.enqueue([array]))


async def _graph(array: Any, folder: Path) -> Any:
    af.constant(array, name="c")
    stored = af.get_default_graph().as_graph_def()
    with af.Graph().as_default():
        (copy,) = af.import_graph_def(stored, return_elements=["c:0"])
        return await _run(copy)


async def _checkpoint(array: Any, folder: Path) -> Any:
    variable = af.Variable(array, name="v")
    async with af.Session() as session:
        await session.run(variable.initializer)
        path = await af.train.Saver().save(session, folder / "m")
    return af.train.load_variable(str(path), "v")


async def _safetensors(array: Any, folder: Path) -> Any:
    await save(folder / "m.safetensors", {"v": array})
    return safetensors.numpy.load_file(folder / "m.safetensors")["v"]


async def _onnx(array: Any, folder: Path) -> Any:
    await onnx.export(af.get_default_graph(), {"y": af.identity(af.constant(array))}, path=folder / "m.onnx")
    model = onnx.load(folder / "m.onnx")
    (signature,) = model.signatures.values()
    async with af.Session(graph=model.graph) as session:
        return await session.run(signature.outputs["y"])


def _saving(save: Callable[..., Awaitable[Any]], load: Callable[[Path], Any]) -> Callable[[Any, Path], Awaitable[Any]]:
    async def door(array: Any, folder: Path) -> Any:
        x, variable = af.placeholder(_dtype(array), None), af.Variable(array)
        outputs = {"fed": af.identity(x), "constant": af.constant(array), "variable": af.identity(variable)}
        async with af.Session() as session:
            await session.run(variable.initializer)
            await save(session, folder / "m", {"serving_default": af.saved.Signature({"x": x}, outputs)})
        model = load(folder / "m")
        async with af.Session(graph=model.graph) as session:
            await model.initialize(session)
            found = await session.run(dict(model.outputs), {model.inputs["x"]: array})
        np.testing.assert_array_equal(found["fed"], found["constant"])
        np.testing.assert_array_equal(found["fed"], found["variable"])
        return found["variable"]

    return door


_saved, _saved_model = _saving(af.saved.save, af.saved.load), _saving(save_saved_model, load_saved_model)
_saved.__name__, _saved_model.__name__ = "_saved", "_saved_model"


async def _answer(array: Any, folder: Path) -> Any:
    """Encode the array as a response of a service, in the binary form of its protocol, which is little-endian."""
    encoded = encode_response(InferResponse("m", "1", {"y": array}), ["y"])
    raw = bytes(encoded.body)[encoded.json_length :]
    return np.frombuffer(raw, array.dtype.newbyteorder("<")).reshape(array.shape)


_DOORS: list[Callable[[Any, Path], Awaitable[Any]]] = [
    _constant, _constant_of_a_dtype, _feed, _variable, _assign, _bits, _message, _function, _coroutine, _iterator,
    _queue, _graph, _checkpoint, _safetensors, _onnx, _saved, _saved_model, _answer,
]  # fmt: skip


@pytest.mark.parametrize(
    ("door", "layout"),
    [
        pytest.param(door, layout, id=f"{door.__name__}-{layout}")
        for door in _DOORS
        for layout in _LAYOUTS
        if not (layout.startswith("c8") and door in (_safetensors, _onnx, _answer))  # formats without complex numbers
        if not (layout.startswith("f2") and door is _answer)  # sent as JSON
    ],
)
async def test_numbers_are_the_same_in_any_layout(door: Any, layout: str, tmp_path: Path) -> None:
    array = _LAYOUTS[layout]
    found = np.asarray(await door(array, tmp_path))
    assert found.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("door", [_constant, _variable], ids=lambda door: door.__name__)
async def test_numbers_in_an_array_of_objects_are_numbers(door: Any, tmp_path: Path) -> None:
    found = await door(np.array([[1, 2.5], [3, 4]], object), tmp_path)
    np.testing.assert_array_equal(found, np.array([[1, 2.5], [3, 4]], np.float32))


@pytest.mark.parametrize("door", [_constant, _variable, _safetensors], ids=lambda door: door.__name__)
async def test_structured_arrays_are_refused(door: Any, tmp_path: Path) -> None:
    with pytest.raises(DTypeError):
        await door(np.zeros(2, [("a", "f4"), ("b", "i4")]), tmp_path)
