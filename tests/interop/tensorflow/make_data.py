"""Script that makes the files of `data/` with TensorFlow: `python -m tests.interop.tensorflow.make_data`.

The files are small, so that the tests that read them need no TensorFlow. `expected.npz` holds TensorFlow's results.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf import saved_model_pb2

DATA: Final = Path(__file__).parent / "data"
X: Final = np.array([[1, -2, 3], [0.5, 0, -1]], np.float32)
v1: Any = tf.compat.v1


def variables() -> dict[str, Any]:
    return {
        "layer/kernel": np.arange(6, dtype=np.float32).reshape(3, 2) / 7,
        "layer/bias": np.array([0.5, -0.5], np.float32),
        "words": np.array([b"", b"two", b"\0three"], object),
        "step": np.int64(12),
        "half": np.array([1.5, np.inf], np.float16),
        "flags": np.array([True, False, True]),
        "pairs": np.array([1 + 2j], np.complex64),
    }


def checkpoints() -> dict[str, Any]:
    values = variables()
    for name in ("v1", "v1_sharded", "v2", "v2_sharded"):
        with v1.Graph().as_default(), v1.Session() as session:
            for key, value in values.items():
                v1.get_variable(key, initializer=tf.constant(value), use_resource=False)
            parts = tf.constant(np.arange(20, dtype=np.float32).reshape(10, 2))
            v1.get_variable("parts", initializer=parts, partitioner=v1.fixed_size_partitioner(3))
            session.run(v1.global_variables_initializer())
            (folder := DATA / "checkpoints" / name).mkdir(parents=True)
            saver = v1.train.Saver(write_version=int(name[1]), sharded="sharded" in name)
            saver.save(session, str(folder / "model"), 3, write_meta_graph=False)
    objects = tf.train.Checkpoint(dense=tf.train.Checkpoint(w=tf.Variable(values["layer/kernel"], name="layer/kernel")))
    objects.save(str(DATA / "checkpoints" / "objects" / "model"))
    return {f"variable/{key}": value for key, value in values.items() if value.dtype != object} | {
        "variable/parts": np.arange(20, dtype=np.float32).reshape(10, 2)
    }


def first_generation() -> dict[str, Any]:
    """Write a model as TensorFlow 1 does, as text.

    The model has a checkpoint, an asset that it reads, and a node that runs at the start.
    """
    folder = DATA / "saved_model_v1"
    asset = Path(tempfile.mkdtemp()) / "words.txt"
    asset.write_bytes(b"a line\n")
    with v1.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 3], name="x")
        kernel = v1.get_variable("kernel", initializer=variables()["layer/kernel"], use_resource=True)
        bias = v1.get_variable("bias", initializer=variables()["layer/bias"], use_resource=True)
        calls = v1.get_variable("calls", initializer=0, trainable=False, use_resource=True)
        file = tf.constant(str(asset), name="file")
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, file)
        y = tf.nn.relu(tf.matmul(x, kernel) + bias, name="y")
        started = v1.assign(calls, 41, name="started")
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(folder))
        info = v1.saved_model.build_tensor_info
        signature = v1.saved_model.build_signature_def(
            {"x": info(x)},
            {"y": info(y), "text": info(tf.io.read_file(file)), "calls": info(calls.read_value())},
            v1.saved_model.signature_constants.PREDICT_METHOD_NAME,
        )
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            {"serving_default": signature},
            assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            main_op=started.op,
        )
        builder.save(as_text=True)
        found = session.run(y, {x: X})
    return {"saved_model_v1/y": found, "saved_model_v1/calls": np.int32(41)}


class Module(tf.Module):  # type: ignore[misc]  # TensorFlow publishes no types
    """A module of two functions, of which one calls the other, with a loop, a branch and an asset."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = tf.Variable(variables()["layer/kernel"], name="kernel")
        self.bias = tf.Variable(variables()["layer/bias"], name="bias", trainable=False)
        asset = Path(tempfile.mkdtemp()) / "words.txt"
        asset.write_bytes(b"another line\n")
        self.file = tf.saved_model.Asset(str(asset))
        x = tf.TensorSpec((None, 3), tf.float32, "x")
        self.linear = tf.function(self._linear, input_signature=[x])
        self.repeated = tf.function(self._repeated, input_signature=[x, tf.TensorSpec((), tf.int32, "n")])

    def _linear(self, x: Any) -> Any:
        return {"y": tf.matmul(x, self.kernel) + self.bias}

    def _repeated(self, x: Any, n: Any) -> Any:
        y = self.linear(x)["y"]
        for _ in tf.range(n):
            y = tf.cond(tf.reduce_sum(y) > 0, lambda: tf.nn.relu(y) - 1.0, lambda: y + self.bias)  # noqa: B023
        return {"y": y, "text": tf.io.read_file(self.file.asset_path)}


def second_generation() -> dict[str, Any]:
    module = Module()
    signatures = {"serving_default": module.linear, "repeated": module.repeated}
    tf.saved_model.save(module, str(DATA / "saved_model_v2"), signatures=signatures)
    return {
        "saved_model_v2/linear": module.linear(X)["y"].numpy(),
        "saved_model_v2/repeated": module.repeated(X, 5)["y"].numpy(),
    }


def keras() -> dict[str, Any]:
    k = tf.keras
    k.utils.set_random_seed(3)
    inputs = k.Input((5, 3))
    hidden = k.layers.Flatten()(k.layers.Conv1D(3, 2, activation="relu")(inputs))
    model = k.Model(inputs, k.layers.Dense(2, activation="softmax")(hidden))
    model.export(str(DATA / "keras"), verbose=False)
    x = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
    return {"keras/x": x, "keras/y": model.predict(x, verbose=0)}


def without_op_list(folder: Path) -> None:
    """Remove TensorFlow's op definitions from the model: most of a small file, and unused here."""
    binary, text = folder / "saved_model.pb", folder / "saved_model.pbtxt"
    model = saved_model_pb2.SavedModel()
    if binary.exists():
        model.ParseFromString(binary.read_bytes())
    else:
        text_format.Parse(text.read_text(), model)
    for meta in model.meta_graphs:
        meta.meta_info_def.ClearField("stripped_op_list")
    if binary.exists():
        binary.write_bytes(model.SerializeToString())
    else:
        text.write_text(text_format.MessageToString(model))


def main() -> None:
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir()
    found = {**checkpoints(), **first_generation(), **second_generation(), **keras(), "x": X}
    np.savez_compressed(DATA / "expected.npz", **found)
    for folder in ("saved_model_v1", "saved_model_v2", "keras"):
        without_op_list(DATA / folder)
    for left in [*DATA.rglob("fingerprint.pb"), *DATA.rglob("checkpoint")]:
        if left.name != "checkpoint" or left.parent.parent.name != "checkpoints":
            left.unlink()
    for path in DATA.rglob("checkpoint"):  # it names the folder in which it was made
        path.write_text(path.read_text().replace(f"{path.parent}/", ""))


if __name__ == "__main__":
    main()
