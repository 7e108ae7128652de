"""Tensors that stay in a session between steps, and their handles."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import ClosedSessionError, DTypeError, InvalidArgumentError
from aioflow.kernels.session_tensors import StoredTensors
from tests.session.busy_steps import at, on
from tests.support.waiting import eventually


def stores() -> list[StoredTensors]:
    """Return the stores of all sessions."""
    gc.collect()
    return [part for part in gc.get_objects() if isinstance(part, StoredTensors)]


async def test_a_stored_tensor_is_read_fed_and_deleted() -> None:
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [None], name="x")
        keep, more = af.get_session_handle(x * 2.0, name="kept"), x + 1.0
        async with af.Session() as session:
            fed = np.array([1.0, 2.0], np.float32)
            first = await session.run(keep, {x: fed})
            assert first.handle == str(first) == f"kept;1;{session.list_devices()[0]}"
            assert first.dtype is af.float32
            (second, same), text = await session.run([[keep, keep], af.as_string(x)], {x: fed + 1.0})
            assert second is same
            assert text.tolist() == [b"2.000000", b"3.000000"]
            holder, tensor = af.get_session_tensor(first.handle, "float32")
            sums = tensor + 1.0
            graph.finalize()
            value = await first.eval()
            value[:] = -1.0  # the caller's own
            assert (await session.run(sums, {holder: first.handle})).tolist() == [3.0, 5.0]
            assert (await session.run(sums, {holder: second.handle})).tolist() == [5.0, 7.0]
            assert (await session.run(more, {x: first})).tolist() == [3.0, 5.0]
            assert (await session.make_callable(more, [x])(second)).tolist() == [5.0, 7.0]
            assert (await session.run(more, {x: second}, timeout=60.0)).tolist() == [5.0, 7.0]
            await first.delete()
            for call in (first.eval, first.delete):
                with pytest.raises(DTypeError, match="deleted already"):
                    await call()
            with pytest.raises(InvalidArgumentError, match="not in the session store"):
                await session.run(sums, {holder: first.handle})
        with pytest.raises(ClosedSessionError):
            await second.eval()


async def test_tensors_are_released_with_their_handles_and_their_session() -> None:
    with af.Graph().as_default():
        before = stores()
        keep = af.get_session_handle(af.random_uniform([3]))
        async with af.Session() as session:
            handle = await session.run(keep)
            raw = (await session.run(keep)).get_raw_handle()
            (store,) = [each for each in stores() if each not in before]
            assert len(store) == 2
            del handle
            gc.collect()
            handle = await session.run(keep)
            assert len(store) == 2
            holder, deleted = af.delete_session_tensor(raw)
            await session.run(deleted, {holder: raw})
            assert len(store) == 1
            released = weakref.ref(store)
            del store
        gc.collect()
        # A thread that ran the last kernel may still have to be scheduled to let go of it.
        await eventually(lambda: released() is None)
        assert handle.dtype is af.float32


async def test_tensors_stay_on_their_device_and_are_moved_by_feeding() -> None:
    x = af.placeholder("float32", [2], name="x")
    kept = []
    for number in range(2):
        with at(number):
            kept.append(af.get_session_handle(x * 2.0))
    with at(0):
        near = af.identity(x) + 1.0
    async with on() as session:
        handles = await session.run(kept, {x: [1.0, 2.0]})
        assert [handle.handle[-1] for handle in handles] == ["0", "1"]
        holder, tensor = af.get_session_tensor(handles[1].handle, "float32")
        assert tensor.device == handles[1].handle.split(";")[2]
        assert (await session.run(tensor + 1.0, {holder: handles[1].handle})).tolist() == [3.0, 5.0]
        with pytest.raises(InvalidArgumentError, match="on another device; to move it, feed its TensorHandle"):
            await session.run(tensor, {holder: handles[0].handle})
        assert (await session.run(near, {x: handles[1]})).tolist() == [3.0, 5.0]


async def test_wrong_arguments_are_rejected() -> None:
    with af.Graph().as_default():
        x = af.placeholder("int32", [], name="x")
        with pytest.raises(DTypeError, match="only a tensor"):
            af.get_session_handle(3)  # type: ignore[arg-type]  # the mistake
        for text in ("", "name;1", "a;b;c", b"\xff"):
            with pytest.raises(InvalidArgumentError, match="not the handle of a stored tensor"):
                af.get_session_tensor(text, "int32")
        async with af.Session() as session:
            handle = await session.run(af.get_session_handle(af.constant(1.5)))
            with pytest.raises(DTypeError, match="feed for 'x:0'"):
                await session.run(x + 1, {x: handle})
        async with af.Session() as other:
            holder, tensor = af.get_session_tensor(handle.handle, "float32")
            with pytest.raises(InvalidArgumentError, match="not in the session store"):
                await other.run(tensor, {holder: handle.handle})
