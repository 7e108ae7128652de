"""Run the CPU kernels with large operands, and print as JSON which of them woke OpenBLAS's threads.

With `--open`, the entry point `products` leaves these threads alone. This verifies the detection: it must then report
every product.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

_TASKS: Final = Path("/proc/self/task")


def blas_workers() -> list[Path]:
    """Return the threads of this process that are not Python's. So far only OpenBLAS starts such threads."""
    ours = {str(thread.native_id) for thread in threading.enumerate()}
    return [task for task in _TASKS.iterdir() if task.name not in ours]


def runs(workers: list[Path]) -> int:
    """Return how many times the workers have been scheduled, once all of them sleep."""
    end = time.monotonic() + 20
    while any((task / "stat").read_text().rpartition(")")[2].split()[0] != "S" for task in workers):
        if time.monotonic() > end:
            raise TimeoutError("OpenBLAS's threads do not go to sleep")
        os.sched_yield()
    return sum(int((task / "schedstat").read_text().split()[2]) for task in workers)


# -- programs ----------------------------------------------------------------------------------------------------------

N: Final = 700  # 700 * 700 elements: above the single-thread limit of every version of OpenBLAS
SPEC = Callable[[], Any]


def operand(af: Any, dtype: str, *shape: int) -> Any:
    """Return a placeholder of a static shape, and register its value in `VALUES`."""
    tensor = af.placeholder(dtype, list(shape))
    VALUES[tensor] = made(dtype, shape)
    return tensor


VALUES: dict[Any, Any] = {}
_MADE: dict[Any, Any] = {}


def made(dtype: str, shape: tuple[int, ...]) -> Any:
    """Return numbers from 0.1 to 0.9. A square matrix is symmetric and has a dominant diagonal."""
    key = dtype, shape
    if key not in _MADE:
        value = np.random.default_rng(0).uniform(0.1, 0.9, shape).astype(dtype)
        if len(shape) > 1 and shape[-1] == shape[-2]:
            value = (value + value.swapaxes(-1, -2)) / 2 + np.eye(shape[-1]) * shape[-1]
        _MADE[key] = value.astype(dtype)
    return _MADE[key]


def products(af: Any, dtype: str) -> dict[str, SPEC]:
    """Return programs of the ops that multiply, in the forms that take different paths through their kernels."""
    raw = af.raw_ops

    def x(*shape: int) -> Any:
        return operand(af, dtype, *shape)

    square, image, kernel = partial(x, N, N), partial(x, 8, 40, 40, 32), partial(x, 3, 3, 32, 32)
    strided = {"strides": [1, 2, 2, 1], "padding": "SAME"}
    dense = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    table: dict[str, SPEC] = {
        "MatMul": lambda: af.matmul(square(), square()),
        "MatMul of a matrix with itself": lambda: (lambda a: af.matmul(a, a, transpose_b=True))(x(300, 90)),
        "MatMul of a row": lambda: af.matmul(x(1, N), square()),
        "MatMul to a column": lambda: af.matmul(square(), x(N, 1), transpose_a=True),
        "MatMul to a number": lambda: af.matmul(x(1, N * N), x(N * N, 1)),
        "MatMul of medium size": lambda: af.matmul(x(130, 130), x(130, 130)),
        "BatchMatMul": lambda: raw.BatchMatMul(x=x(3, 200, 200), y=x(3, 200, 200), adj_y=True),
        "BatchMatMulV2": lambda: raw.BatchMatMulV2(x=x(40, 1, 128, 128), y=x(3, 128, 128)),
        "BatchMatMulV2 of a row": lambda: raw.BatchMatMulV2(x=x(2, 1, N), y=x(2, N, N)),
        "Einsum": lambda: af.einsum("abc,cd->abd", x(4, 200, 200), x(200, 300)),
        "Einsum of three": lambda: raw.Einsum(inputs=[square(), square(), x(N, 3)], equation="ij,jk,kl->il"),
        "Einsum over a diagonal": lambda: raw.Einsum(inputs=[square(), square()], equation="ii,ij->j"),
        "SelfAdjointEigV2": lambda: raw.SelfAdjointEigV2(input=x(150, 150), compute_v=True),
        "SelfAdjointEigV2 without vectors": lambda: raw.SelfAdjointEigV2(input=x(150, 150), compute_v=False),
        "Svd": lambda: raw.Svd(input=x(150, 150), compute_uv=True),
        "Svd without vectors": lambda: raw.Svd(input=x(150, 150), compute_uv=False),
        "Qr": lambda: raw.Qr(input=x(200, 200)),
        "Cholesky": lambda: raw.Cholesky(input=square()),
        "MatrixInverse": lambda: raw.MatrixInverse(input=x(300, 300)),
        "MatrixDeterminant": lambda: raw.MatrixDeterminant(input=x(150, 150)),
        "LogMatrixDeterminant": lambda: raw.LogMatrixDeterminant(input=x(300, 300)),
        "MatrixSolve": lambda: raw.MatrixSolve(matrix=x(300, 300), rhs=x(300, 300)),
        "MatrixTriangularSolve": lambda: raw.MatrixTriangularSolve(matrix=square(), rhs=square()),
    }
    if dtype == "complex64":
        return table
    table |= {
        "CholeskyGrad": lambda: raw.CholeskyGrad(l=square(), grad=square()),
        "Sum over rows": lambda: af.reduce_sum(x(N, N), 0),
        "Sum over columns": lambda: af.reduce_sum(x(N, N), 1, keepdims=True),
        "Mean over images": lambda: af.reduce_mean(x(8, 50, 50, 64), [0, 1, 2]),
        "BiasAddGrad": lambda: raw.BiasAddGrad(out_backprop=x(8, 50, 50, 64)),
        "Softmax": lambda: raw.Softmax(logits=x(50_000, 10)),
        "LogSoftmax": lambda: raw.LogSoftmax(logits=x(50_000, 10)),
        "SoftmaxCrossEntropyWithLogits": lambda: raw.SoftmaxCrossEntropyWithLogits(
            features=x(50_000, 10), labels=x(50_000, 10)
        ),
        "SparseSoftmaxCrossEntropyWithLogits": lambda: raw.SparseSoftmaxCrossEntropyWithLogits(
            features=x(50_000, 10), labels=af.zeros([50_000], af.int32)
        ),
        "L2Loss": lambda: raw.L2Loss(t=square()),
        "Conv2D": lambda: af.nn.conv2d(image(), kernel(), **dense),
        "Conv3D": lambda: af.nn.conv3d(x(2, 12, 24, 24, 32), x(3, 3, 3, 32, 64), [1] * 5, "SAME"),
        "Conv3DBackpropInputV2": lambda: af.nn.conv3d_transpose(
            x(2, 12, 24, 24, 64), x(3, 3, 3, 32, 64), [2, 12, 24, 24, 32], [1] * 5
        ),
        "Conv3DBackpropFilterV2": lambda: af.nn.conv3d_backprop_filter_v2(
            x(2, 12, 24, 24, 32), [3, 3, 3, 32, 64], x(2, 12, 24, 24, 64), [1] * 5, "SAME"
        ),
        "Conv2D in one block": lambda: af.nn.conv2d(x(1, 1, 1, 512), x(3, 3, 512, 512), **dense),
        "Conv2D of pixels": lambda: af.nn.conv2d(image(), x(1, 1, 32, 64), **dense),
        "Conv2D of few channels": lambda: af.nn.conv2d(x(8, 40, 40, 1), x(5, 5, 1, 64), **dense),
        "Conv2D with strides": lambda: af.nn.conv2d(image(), kernel(), **strided),
        "Conv2DBackpropInput": lambda: raw.Conv2DBackpropInput(
            input_sizes=[8, 40, 40, 32], filter=kernel(), out_backprop=image(), **dense
        ),
        "Conv2DBackpropInput with strides": lambda: raw.Conv2DBackpropInput(
            input_sizes=[8, 80, 80, 32], filter=kernel(), out_backprop=image(), **strided
        ),
        "Conv2DBackpropInput in one block": lambda: raw.Conv2DBackpropInput(
            input_sizes=[1, 1, 1, 512], filter=x(3, 3, 512, 512), out_backprop=x(1, 1, 1, 512), **dense
        ),
        "Conv2DBackpropFilter": lambda: raw.Conv2DBackpropFilter(
            input=image(), filter_sizes=[3, 3, 32, 32], out_backprop=image(), **dense
        ),
        "Conv2DBackpropFilter in one block": lambda: raw.Conv2DBackpropFilter(
            input=x(1, 1, 1, 512), filter_sizes=[3, 3, 512, 512], out_backprop=x(1, 1, 1, 512), **dense
        ),
    }
    if dtype == "float32":
        table |= {
            "ResizeBilinearGrad": lambda: raw.ResizeBilinearGrad(
                grads=x(4, 96, 96, 16), original_image=x(4, 64, 64, 16)
            ),
            "FusedBatchNormV3": lambda: raw.FusedBatchNormV3(
                x=x(8, 50, 50, 64), scale=x(64), offset=x(64), mean=x(64), variance=x(64)
            ),
            "FusedBatchNormGradV3": lambda: raw.FusedBatchNormGradV3(
                y_backprop=x(8, 50, 50, 64),
                x=x(8, 50, 50, 64),
                scale=x(64),
                reserve_space_1=x(64),
                reserve_space_2=x(64),
                reserve_space_3=x(64),
            ),
        }
    return table


SHAPES: Final = ((N, N), (8, 40, 40, 40), (4, 360, 360), (12_000,), ())
COUNTS: Final = ([0], 0, 1, [0, 1], [1, 0], [2, 2], [N, N], [[0, 0], [0, 0]], [1, 1, 1, 1], N)


def attempts(af: Any, op_def: Any, dtype: str) -> Iterator[SPEC]:
    """Yield candidate calls of an op: large operands for floating-point inputs, small ones for integer inputs."""
    for shape, others in itertools.product(SHAPES, COUNTS):
        yield partial(call, af, op_def, dtype, shape, others)
    for shape in SHAPES[:2]:  # the first operand is large, and the others have an element for each of its columns
        yield partial(call, af, op_def, dtype, shape, [0], shape[-1:])


def call(
    af: Any, op_def: Any, dtype: str, shape: tuple[int, ...], small: Any, later: tuple[int, ...] | None = None
) -> Any:
    given: dict[str, Any] = {}
    for arg in op_def.inputs:
        allowed = op_def.attrs[arg.type_attr].allowed if arg.type_attr else (arg.dtype,)
        names = None if allowed is None else {t.name for t in allowed}
        one: Any
        if names is None or dtype in names:
            one = operand(af, dtype, *(shape if later is None or not given else later))
        elif "bool" in names:
            one = operand(af, "bool", *shape)
        elif names & {"string", "resource", "variant"}:
            one = "1.5"
        else:
            one = af.constant(small, "int32" if "int32" in names else min(names))
        given[arg.name] = [one, one] if arg.is_sequence else one
    for attr in op_def.attrs.values():
        if not attr.has_default and attr.kind in PLAIN and attr.name not in implied(op_def):
            given[attr.name] = attr.allowed[0] if attr.allowed and attr.kind != "type" else PLAIN[attr.kind]
    return getattr(af.raw_ops, op_def.name)(**given)


PLAIN: Final = {"int": 2, "float": 0.5, "bool": False, "string": "x", "type": "float32", "shape": [N, N]}


def implied(op_def: Any) -> set[Any]:
    return {a for arg in op_def.inputs for a in (arg.type_attr, arg.list_attr, arg.number_attr)}


def steps(af: Any) -> dict[str, SPEC]:
    """Return programs that are whole steps, whose nodes a session fuses, folds and partitions."""

    def network() -> Any:
        x = operand(af, "float32", 1024, 784)
        hidden = af.nn.relu(af.nn.bias_add(af.matmul(x, weights(784, 600)), weights(600)))
        logits = af.nn.bias_add(af.matmul(hidden, weights(600, 10)), weights(10))
        loss = af.reduce_mean(
            af.nn.sparse_softmax_cross_entropy_with_logits(labels=af.zeros([1024], af.int32), logits=logits)
        )
        return [af.train.GradientDescentOptimizer(0.01).minimize(loss), loss]

    def images() -> Any:
        x = operand(af, "float32", 16, 28, 28, 8)
        y = af.nn.relu(af.nn.bias_add(af.nn.conv2d(x, weights(5, 5, 8, 32), [1, 1, 1, 1], "SAME"), weights(32)))
        loss = af.reduce_mean(af.square(y)) + af.nn.l2_loss(y)
        return [af.train.GradientDescentOptimizer(0.01).minimize(loss), loss]

    def weights(*shape: int) -> Any:
        return af.Variable(made("float32", shape) * np.float32(0.01))

    def folded() -> Any:
        large = af.constant(made("float64", (N, N)))
        return [af.reduce_sum(af.matmul(large, large), 0) + operand(af, "float64", N)]

    return {"a network": network, "a network of images": images, "constants": folded}


# -- watching ----------------------------------------------------------------------------------------------------------


class Watch:
    """Runner of programs that records which of them ran and which woke a worker thread of OpenBLAS."""

    def __init__(self, workers: list[Path]) -> None:
        self.ran: list[str] = []
        self.woke: list[str] = []
        self._workers = workers

    def try_(self, name: str, spec: SPEC, run: Callable[[Any], None]) -> bool:
        """Run a program, and return whether it ran without an error."""
        import aioflow as af

        VALUES.clear()
        with af.Graph().as_default():
            try:
                fetches = spec()
                before = runs(self._workers)
                run(fetches)
            except Exception:  # most candidate calls are wrong: their errors do not matter here
                return False
        self.ran.append(name)
        if runs(self._workers) != before:
            self.woke.append(name)
        return True

    def must(self, name: str, spec: SPEC, run: Callable[[Any], None]) -> None:
        """Run a program like `try_`, but raise RuntimeError if it fails."""
        if not self.try_(name, spec, run):
            raise RuntimeError(f"{name} does not run")

    def products(self, af: Any) -> None:
        """Run the table of products in all dtypes, and the whole steps."""
        for dtype in ("float32", "float64", "complex64"):
            for name, spec in products(af, dtype).items():
                self.must(f"{name} {dtype}", spec, evaluate)
        for name, spec in steps(af).items():
            self.must(name, spec, in_a_session)

    def every_op(self, af: Any) -> None:
        """Run all ops, in the dtypes that OpenBLAS shares among threads at the smallest sizes."""
        for op_def in every_op():
            if not self._attempt(af, op_def, "float64"):
                self._attempt(af, op_def, "float32")
            self._attempt(af, op_def, "complex64")

    def _attempt(self, af: Any, op_def: Any, dtype: str) -> bool:
        return any(self.try_(f"{op_def.name} {dtype}", spec, evaluate) for spec in attempts(af, op_def, dtype))


def every_op() -> list[Any]:
    from aioflow.graph.opdef import OPS, traits_of

    return [
        op
        for op in OPS
        if op.inputs
        and not op.name.startswith("_")
        and not traits_of(op.name).is_control_flow
        and traits_of(op.name).kind != "waiting"  # these would wait for other tasks, which do not exist here
    ]


def evaluate(fetches: Any) -> None:
    from aioflow.testing.evaluate import evaluate as run

    flat = fetches if isinstance(fetches, list | tuple) else [fetches]
    run([f for f in flat if hasattr(f, "dtype")], VALUES, targets=[f for f in flat if not hasattr(f, "dtype")])


def in_a_session(fetches: Any) -> None:
    import aioflow as af

    with af.Session() as session:
        session.run_sync(af.global_variables_initializer())
        for _ in range(2):
            session.run_sync(fetches, VALUES)


def main() -> None:
    import resource

    resource.setrlimit(
        resource.RLIMIT_AS, (3 << 30, 3 << 30)
    )  # some attempts would allocate more, which takes long to fill
    import aioflow as af
    from aioflow_numpy import blas_threads

    count = blas_threads._count
    count.set(2)  # one worker thread, on any number of processors
    watch = Watch(blas_workers())
    if "--open" in sys.argv:
        count.set = lambda number: None
        watch.products(af)
    else:
        watch.products(af)
        watch.every_op(af)
    print(json.dumps({"ran": watch.ran, "woke": watch.woke}))


if __name__ == "__main__":
    main()
