"""The tests of the ops, once more on the fake GPU: what would break on CuPy's arrays breaks here.

Each suite's own test functions are collected again, with `evaluate` replaced by one that runs every node with a GPU
kernel on strict arrays, and the others on the CPU. Values are so compared with the suites' own expectations, which are
NumPy's or written out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import pytest

from aioflow.compiler.ir import Node
from aioflow.kernels.registry import KERNELS
from tests.backends.cupy.evaluation import evaluator
from tests.backends.cupy.fakes import PlainDevice
from tests.ops import (
    test_array,
    test_array_errors,
    test_comparison,
    test_image,
    test_linalg,
    test_math,
    test_matrix,
    test_nn,
    test_nn_loss,
    test_nn_norm,
    test_random,
    test_reduction,
    test_segment,
    test_sorting,
    test_state,
)
from tests.train import test_optimizers

SUITES: Final[tuple[ModuleType, ...]] = (
    test_array,
    test_array_errors,
    test_comparison,
    test_image,
    test_linalg,
    test_math,
    test_matrix,
    test_nn,
    test_nn_loss,
    test_nn_norm,
    test_random,
    test_reduction,
    test_segment,
    test_sorting,
    test_state,
    test_optimizers,
)

# Tests that are about something else than values on a device.
LEFT_OUT: Final = {
    "test_array.test_views_share_memory": "which NumPy arrays share memory",
    "test_array.test_gradient": "the gradients of views: slow, and made of ops that are covered",
    "test_array_errors.test_refused": "indices out of bounds, which the GPU does not look at",
    "test_array_errors.test_message_has_the_numbers": "the same",
    "test_image.test_gradients_of_resizing": "finite differences in many evaluations: slow",
    "test_image.test_gradients_of_cutting": "the same",
    "test_image.test_gradients_of_bicubic_resizing": "the same",
    "test_image.test_gradients_of_filters": "the same",
    "test_image.test_gradients_of_colours": "the same",
    "test_image.test_gradients_of_moving": "the same",
    "test_image.test_decoding_leaves_the_loop_alone": "image files, on the CPU",
    "test_image.test_a_damaged_file_is_one_typed_error": "the same",
    "test_math.test_gradient_of_one_operand": "finite differences: slow",
    "test_math.test_gradient_of_two_operands": "the same",
    "test_nn.test_bias_add_of_large_arrays": "how the CPU cuts its work",
    "test_nn.test_embedding_refuses": "indices out of bounds",
    "test_nn_loss.test_a_label_out_of_range_is_refused": "labels out of bounds",
    "test_reduction.test_gradients": "finite differences: slow",
    "test_sorting.test_gradients_of_top_k": "finite differences: slow",
    "test_state.test_shapes_that_come_at_run_time_are_checked": "indices out of bounds",
    "test_state.test_scatter_works_in_place_and_touches_only_the_rows": "the addresses of NumPy arrays",
}

RAN: Counter[str] = Counter()
WAITED: Counter[str] = Counter()


def _ran(node: Node, waited: int) -> None:
    RAN[node.op] += 1
    WAITED[node.op] += bool(waited)


EVALUATE: Final = evaluator(PlainDevice(), _ran)


@pytest.fixture(autouse=True)
def on_the_fake(monkeypatch: pytest.MonkeyPatch) -> None:
    for suite in SUITES:
        if hasattr(suite, "evaluate"):
            monkeypatch.setattr(suite, "evaluate", EVALUATE)


def _collect() -> Iterator[tuple[str, Any]]:
    for suite in SUITES:
        short = suite.__name__.rpartition(".")[2]
        for name, value in vars(suite).items():
            if name.startswith("test_") and callable(value) and f"{short}.{name}" not in LEFT_OUT:
                yield f"{short}_{name.removeprefix('test_')}", value
            elif hasattr(value, "_fixture_function"):
                yield name, value


globals().update(_collect())


def test_zz_most_ops_have_run() -> None:
    """Runs last. A suite that was renamed must not leave this one looking at nothing."""
    assert len(RAN) >= 220, sorted(RAN)


def test_zz_only_known_kernels_make_the_host_wait() -> None:
    batched = {"GatherV2", "ResourceGather"}  # they look at indices only where they have batch dimensions
    synchronising = {kernel.op for kernel in KERNELS if kernel.synchronises}
    assert {op for op, count in WAITED.items() if count} - batched <= synchronising
