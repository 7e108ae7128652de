"""Tensors that stay in a session against TensorFlow's: texts of handles, values, and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import aioflow


def program(m: Any, session: Any, wait: Callable[[Any], Any]) -> list[Any]:
    """Store, read, feed and delete tensors. `wait` returns the result of a call that may be a coroutine."""

    def run(fetches: Any, feeds: Any = None) -> Any:
        return wait(session.run(fetches, feeds))

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return np.asarray(wait(call())).tolist()
        except TypeError:
            return "TypeError"
        except m.errors.InvalidArgumentError:
            return "InvalidArgumentError"

    x = m.placeholder("float32", [2])
    keep = m.get_session_handle(x * 2.0, name="kept")
    first, second = run(keep, {x: [1.0, 2.0]}), run([keep], {x: [3.0, 4.0]})[0]
    holder, tensor = m.get_session_tensor(first.handle, m.float32)
    deleting, deleted = m.delete_session_tensor(second.handle)
    _, stored = m.get_session_tensor(first.handle, m.float32, name="named")
    found = [keep.dtype.name, first.handle.split(";")[0], first.handle.split(";")[2], str(first) == first.handle]
    found += [holder.dtype.name, tensor.dtype.name, stored.op.name, deleted.type, stored.op.type, tensor.shape.ndims]
    found += [run(tensor + 1.0, {holder: handle.handle}).tolist() for handle in (first, second)]
    found += [outcome(first.eval), outcome(second.eval), run(x + 1.0, {x: first}).tolist()]
    found.append(outcome(first.delete) is None)
    found += [outcome(first.eval), outcome(first.delete)]
    raw = second.get_raw_handle()
    found += [raw == second.handle, outcome(second.eval), run(tensor, {holder: raw}).tolist()]
    run(deleted, {deleting: raw})
    return [*found, outcome(lambda: session.run(tensor, {holder: raw})), outcome(lambda: m.get_session_handle(3.0))]


def test_handles(tf: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        theirs = program(tf, session, lambda result: result)
    with aioflow.Graph().as_default(), aioflow.Session() as ours:
        mine = program(aioflow, ours, lambda result: ours.wait_for(result) if hasattr(result, "__await__") else result)
    assert mine == theirs
