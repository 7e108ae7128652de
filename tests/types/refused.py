"""Code that a type checker must reject: each line names its error, and fails when it is run.

A line that is accepted has an unused ignore, which is an error too (`warn_unused_ignores`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import aioflow as af

BUILDERS: Final[list[Callable[[af.Tensor, af.Variable, af.Session], Any]]] = [
    lambda x, v, s: af.matmul(x, object()),  # type: ignore[arg-type]
    lambda x, v, s: af.matmul(None, x),  # type: ignore[arg-type]
    lambda x, v, s: af.add(x, {1.0}),  # type: ignore[arg-type]
    lambda x, v, s: af.add(x, {"a": 1.0}),  # type: ignore[arg-type]
    lambda x, v, s: af.multiply([x, [object()]], 2.0),  # type: ignore[list-item]
    lambda x, v, s: af.reduce_sum(x, axis="rows", keepdims="no"),  # type: ignore[arg-type]
    lambda x, v, s: af.nn.relu(af.no_op()),  # type: ignore[arg-type]
    lambda x, v, s: af.nn.relu(af.float32),  # type: ignore[arg-type]
    lambda x, v, s: x + object(),  # type: ignore[operator]
    lambda x, v, s: v * object(),  # type: ignore[operator]
    lambda x, v, s: x @ None,  # type: ignore[operator]
    lambda x, v, s: x + af.SparseTensor([[0, 0]], [1.0], [2, 3]),  # type: ignore[operator]
    lambda x, v, s: x[object()],  # type: ignore[index]
    lambda x, v, s: af.placeholder("float32", [2.5]),  # type: ignore[list-item]
    lambda x, v, s: af.placeholder(3.5),  # type: ignore[arg-type]
    lambda x, v, s: af.cast(x, 2.5),  # type: ignore[call-overload]
    lambda x, v, s: af.assign(x, x),  # type: ignore[arg-type]
    lambda x, v, s: v.assign(object()),  # type: ignore[call-overload]
    lambda x, v, s: af.cond(x, x, x),  # type: ignore[call-overload]
    lambda x, v, s: af.while_loop(lambda i: i < 3, 3, [0]),  # type: ignore[call-overload]
    lambda x, v, s: af.gradients(object(), x),  # type: ignore[call-overload]
    lambda x, v, s: af.gradients(x, x, unconnected_gradients="nil"),  # type: ignore[call-overload]
    lambda x, v, s: af.nn.max_pool(x, 2, 2, "ROUND"),  # type: ignore[arg-type]
    lambda x, v, s: af.pad(x, [[0, 0]], "EDGE"),  # type: ignore[arg-type]
    lambda x, v, s: af.group(x, object()),  # type: ignore[arg-type]
    lambda x, v, s: af.train.AdamOptimizer(object()).minimize(x),  # type: ignore[arg-type]
    lambda x, v, s: af.distributions.Normal(x),  # type: ignore[attr-defined]
    lambda x, v, s: af.nn.rleu(x),  # type: ignore[attr-defined]
    lambda x, v, s: float(x),  # type: ignore[arg-type]
    lambda x, v, s: int(v),  # type: ignore[call-overload]
    lambda x, v, s: s.run_sync(object()),  # type: ignore[call-overload]
    lambda x, v, s: s.run_sync(3),  # type: ignore[call-overload]
    lambda x, v, s: s.run_sync(v, timeout="soon"),  # type: ignore[call-overload]
    lambda x, v, s: s.run_sync(v, tmeout=1.0),  # type: ignore[call-overload]
    lambda x, v, s: s.batched(x, x),  # type: ignore[call-overload]
]
