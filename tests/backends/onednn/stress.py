"""Random shapes for every kernel of oneDNN, or random nets, in guarded memory.

Run with `python -m tests.backends.onednn.stress SEED COUNT [nets] [unguarded]`.

Several threads compute at once; at random, work is stopped at a checkpoint or a primitive fails. Arrays are released as
soon as the kernel has returned or raised: a later access to one would crash the process.

With `unguarded`, arrays are from `malloc`, and Valgrind checks each access to them, but for uninitialized values:

    ONEDNN_MAX_CPU_ISA=AVX2 PYTHONMALLOC=malloc valgrind --undef-value-errors=no --fair-sched=yes \
        --suppressions=tests/backends/onednn/valgrind.supp python -m tests.backends.onednn.stress 1 60 unguarded

This takes about two minutes of processor time, and 280 cases had no finding. Valgrind does not know AVX-512 and VNNI:
NumPy computes the products of 8-bit integers there.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from tests.backends.onednn.guarded_memory import guard

__all__ = ["OneDnn", "nets", "shrink", "stress"]

_THREADS: Final = 3
_SHARE: Final = 0.1  # share of the kernels that are stopped; a fifth of it is the share of the primitives that fail


class OneDnn:
    """A fake of the measured choices, on which oneDNN is always faster."""

    def find(self, shape: str) -> bool:
        return True


def shrink(put: Callable[[Any, str, Any], object]) -> None:
    """Make small arrays go to oneDNN, unmeasured, and to several threads. `put` sets an attribute."""
    from aioflow_numpy import products as numpy_products
    from aioflow_onednn import (
        batch_products,
        conv_blocks,
        forward,
        integer_products,
        kernels,
        layer_norm,
        local_response,
        normalization,
        pooling,
        products,
        team,
    )
    from aioflow_onednn import softmax as softmaxes

    put(kernels, "_WORTHWHILE", 1)
    put(kernels, "CHOICES", OneDnn())
    put(numpy_products, "_BLOCK", 2**12)
    put(products, "COLUMNS", 1)
    put(products, "are_quicker", lambda: True)
    put(conv_blocks, "LEAST", 2**10)
    put(conv_blocks, "_LONG_SUM", 2**13)
    put(forward, "_FOR_A_TEAM", 2**14)
    put(team, "_TRIALS", 0)
    put(team, "_SHORT", 0)
    put(conv_blocks, "_CHANNELS", 4)
    for module in (products, integer_products, softmaxes, normalization, local_response, layer_norm):
        put(module, "WORTHWHILE", 1)
    for module in (batch_products, integer_products, normalization, pooling, softmaxes, local_response, layer_norm):
        put(module, "_BLOCK", 2**9)
    put(pooling, "_SLOW_BLOCK", 2**9)
    put(pooling, "_CACHED", 2**9)
    put(softmaxes, "_CACHED", 2**9)
    put(local_response, "_CACHED", 2**9)
    put(layer_norm, "_CACHED", 2**9)
    put(normalization, "_MANY", 2**6)
    put(normalization, "_SUMMED", 2**4)


def stress(seed: int, count: int) -> Counter[str]:
    """Run random kernels, and return how many agreed, were stopped, and failed.

    Raises:
        AssertionError: a result differs from NumPy's.
    """
    from aioflow.concurrency.stopping import Stoppable, Stopped, doing
    from aioflow.errors import InternalError
    from aioflow_onednn.library import library
    from tests.backends.onednn.random_cases import convolution, flat, fused, integer_product, product
    from tests.backends.onednn.random_layers import LAYERS

    chance = random.Random(seed)
    execute = library().execute

    def failing(*arguments: Any) -> None:
        if chance.random() < _SHARE / 5:
            raise InternalError("a primitive fails")
        execute(*arguments)

    class Ends(Stoppable):
        """Work that may be stopped at one of its first checkpoints."""

        def check(self) -> None:
            if chance.random() < 3 * _SHARE:
                self.stop()
            super().check()

    def one(number: int) -> str:
        rng = np.random.default_rng((seed, number))
        makers = (product, integer_product, convolution, convolution, *LAYERS)
        case = makers[number % len(makers)](rng)
        case = fused(case, rng) if rng.integers(2) else case
        said = f"case {number} of seed {seed}: {case.op} {case.attrs} {[np.shape(each) for each in flat(case.inputs)]}"
        try:
            agrees = doing(Ends() if rng.random() < _SHARE else None, case.agrees)
        except Stopped:
            return "stopped"
        except InternalError:
            return "failed"
        assert agrees, said
        return "agreed"

    library().execute = failing  # type: ignore[method-assign, assignment]
    try:
        with ThreadPoolExecutor(_THREADS, initializer=lambda: np.seterr(all="ignore")) as pool:
            return Counter(pool.map(one, range(count)))
    finally:
        library().execute = execute  # type: ignore[method-assign]


def nets(seed: int, count: int) -> Counter[str]:
    """Compare random nets, whose nodes run as one call, with NumPy's kernels, and count the planned calls."""
    import aioflow as af
    from aioflow_onednn.plans import RunPlan
    from tests.backends.onednn.random_nets import random_net

    outcomes: Counter[str] = Counter()
    run = RunPlan.run

    def watched(plan: RunPlan, given: Any) -> Any:
        outcomes["planned"] += 1
        return run(plan, given)

    with patch.object(RunPlan, "run", watched):
        for number in range(count):
            rng = np.random.default_rng((seed, number))
            with af.Graph().as_default():
                image, made = random_net(rng)
                with af.Session() as session, af.Session(config=af.SessionConfig(reproducible=True)) as plain:
                    for _ in range(4):
                        fed = {image: rng.standard_normal(image.shape.as_list(), np.float32)}
                        found, wanted = session.run_sync(made, fed), plain.run_sync(made, fed)
                        assert np.allclose(found, wanted, rtol=1e-4, atol=1e-4), f"net {number} of seed {seed}"
    return outcomes


if __name__ == "__main__":
    if "unguarded" not in sys.argv:
        guard()
    shrink(setattr)
    kind = nets if "nets" in sys.argv else stress
    print(dict(kind(int(sys.argv[1]), int(sys.argv[2]))))
