"""The op tests on the fake GPU, which fails where CuPy's arrays would.

This module collects the test functions of each suite again, and replaces `evaluate` by a function that runs every node
with a GPU kernel on strict arrays, and the others on the CPU. The expected values are the suites' own, which come from
NumPy or are written out.
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
    test_ctc,
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
    test_sparse_segment,
    test_state,
)
from tests.train import test_optimizers

SUITES: Final[tuple[ModuleType, ...]] = (
    test_array,
    test_array_errors,
    test_comparison,
    test_ctc,
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
    test_sparse_segment,
    test_state,
    test_optimizers,
)

# Tests of other things than values on a device.
LEFT_OUT: Final = {
    "test_array.test_views_share_memory": "which NumPy arrays share memory",
    "test_array.test_gradient_equals_central_differences": "gradients of views: slow, and made of ops that are covered",
    "test_array_errors.test_invalid_values_are_refused": "indices out of bounds, which the GPU does not look at",
    "test_array_errors.test_error_messages_contain_the_numbers": "the same",
    "test_image.test_gradients_of_resizing": "finite differences in many evaluations: slow",
    "test_image.test_gradients_of_crops_pads_and_flips": "the same",
    "test_image.test_gradients_of_bicubic_resizing": "the same",
    "test_image.test_gradients_of_filters": "the same",
    "test_image.test_gradients_of_color_conversions": "the same",
    "test_image.test_gradients_of_projective_transforms": "the same",
    "test_image.test_decoding_large_images_does_not_block_the_loop": "image files, on the CPU",
    "test_image.test_truncated_png_is_an_invalid_argument": "the same",
    "test_math.test_gradient_of_one_operand": "finite differences: slow",
    "test_math.test_gradient_of_two_operands": "the same",
    "test_nn.test_bias_add_of_large_arrays": "how the CPU cuts its work",
    "test_nn.test_embedding_lookup_rejects_wrong_arguments": "indices out of bounds",
    "test_nn_loss.test_a_label_out_of_range_is_refused": "labels out of bounds",
    "test_reduction.test_gradients": "finite differences: slow",
    "test_sorting.test_gradients_of_top_k": "finite differences: slow",
    "test_state.test_fed_shapes_are_checked": "indices out of bounds",
    "test_state.test_scatter_updates_rows_in_place": "the addresses of NumPy arrays",
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
    """Guard against a renamed suite that leaves nothing to test. The prefix `zz` makes this test run last."""
    assert len(RAN) >= 220, sorted(RAN)


def test_zz_only_declared_kernels_synchronize_with_the_host() -> None:
    batched = {"GatherV2", "ResourceGather"}  # they check indices, and so wait, only if they have batch dimensions
    synchronising = {kernel.op for kernel in KERNELS if kernel.synchronises}
    assert {op for op, count in WAITED.items() if count} - batched <= synchronising
