"""Summaries against TensorFlow's: the same messages, nodes and errors."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

import aioflow
from aioflow.testing.evaluate import evaluate

RNG = np.random.default_rng(3)


@pytest.fixture(scope="module")
def both(tf: Any) -> Callable[..., Any]:
    """Build in both systems, compare the messages, and return TensorFlow's."""

    def run(build: Callable[..., Any], *arrays: Any) -> Any:
        made = []
        for module in (tf, aioflow):
            with module.Graph().as_default():
                inputs = [module.placeholder(array.dtype.name, array.shape) for array in arrays]
                summary = build(module, *inputs)
                feeds = dict(zip(inputs, arrays, strict=True))
                assert summary.dtype.name == "string"
                assert summary.shape.as_list() == []
                if module is tf:
                    with tf.Session() as session:
                        value = session.run(summary, feeds)
                else:
                    value = np.asarray(evaluate([summary], feeds)[0], object).item()
                names = [(op.name, op.type) for op in summary.graph.get_operations() if op.type.endswith("Summary")]
                collected = [item.name for item in module.get_collection("summaries")]
                made.append((tf.Summary.FromString(value), names, collected))
        (theirs, *rest), (ours, *own) = made
        assert own == rest
        _with_pixels(ours)
        assert ours == _with_pixels(theirs)
        return theirs

    return run


def _with_pixels(summary: Any) -> Any:
    """Replace PNG files by their pixels, since two writers encode the same pixels differently."""
    for value in summary.value:
        if value.HasField("image"):
            png = Image.open(io.BytesIO(value.image.encoded_image_string))
            value.image.encoded_image_string = np.asarray(png).tobytes() + png.mode.encode()
    return summary


DTYPES = ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_scalars(both: Any, dtype: str) -> None:
    found = both(lambda m, x: m.summary.scalar("loss", x), np.array(3.7).astype(dtype))
    assert [value.tag for value in found.value] == ["loss"]
    both(lambda m, x: m.raw_ops.ScalarSummary(tags=[["a"], ["b"]], values=x), np.array([[1], [2]]).astype(dtype))


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.0, 1e300, 2**53 + 1])
def test_unusual_scalars(both: Any, value: Any) -> None:
    found = both(lambda m, x: m.summary.scalar("x", x), np.array(value, np.float64))
    assert found.value[0].HasField("simple_value")


@pytest.mark.parametrize("dtype", DTYPES)
def test_histograms(both: Any, dtype: str) -> None:
    found = both(lambda m, x: m.summary.histogram("h", x), (RNG.standard_normal((7, 5)) * 20).astype(dtype))
    assert found.value[0].histo.num == 35


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(0),
        np.zeros(5),
        np.array([1e-12, -1e-12, 1.1e-12, 1e-13, -1e-13]),
        np.array([1e20, 9.9e19, -1e25, 1.7e308]),
        RNG.standard_normal(200_000),
        np.exp(RNG.standard_normal(1000) * 20) * RNG.choice([-1, 1], 1000),
        np.array([1e200, 1e200, -1e200]),
    ],
    ids=["nothing", "zeros", "smallest", "largest", "many", "wide", "squares overflow"],
)
def test_histogram_buckets(both: Any, values: Any) -> None:
    assert len(both(lambda m, x: m.summary.histogram("h", x), values).value[0].histo.bucket) > 0


IMAGES = {
    "positive": np.abs(RNG.standard_normal((5, 4, 6, 3))),
    "signed": RNG.standard_normal((2, 4, 6, 1)),
    "dark": np.full((1, 3, 3, 1), 1e-7),
    "negative": -np.abs(RNG.standard_normal((2, 3, 3, 4))),
    "bad": np.where(RNG.random((2, 5, 5, 3)) < 0.2, np.nan, RNG.random((2, 5, 5, 3))),
    "all bad": np.full((1, 2, 2, 3), np.inf),
    "large": RNG.random((2, 96, 80, 3)) * 200,
    "no images": np.zeros((0, 3, 3, 3)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "uint8"])
@pytest.mark.parametrize("name", IMAGES)
def test_images(both: Any, name: str, dtype: str) -> None:
    if dtype == "uint8" and "bad" in name:
        pytest.skip("integers are finite")
    with np.errstate(invalid="ignore"):
        images = IMAGES[name].astype(dtype)
    both(lambda m, x: m.summary.image("i", x), images)


def test_numbers_and_tags_of_images(both: Any) -> None:
    images = RNG.random((4, 2, 2, 1)).astype(np.float32)
    one = both(lambda m, x: m.summary.image("i", x, max_outputs=1), images)
    assert [value.tag for value in one.value] == ["i/image"]
    two = both(lambda m, x: m.summary.image("i", x, max_outputs=2), images)
    assert [value.tag for value in two.value] == ["i/image/0", "i/image/1"]


def test_image_with_bad_color(both: Any) -> None:
    images = np.full((1, 2, 2, 3), np.nan, np.float32)
    color = np.array([1, 2, 3], np.uint8)

    def build(m: Any, x: Any) -> Any:
        if m is aioflow:
            return m.raw_ops.ImageSummary(tag="i", tensor=x, bad_color=color)
        import tensorflow

        return m.raw_ops.ImageSummary(tag="i", tensor=x, bad_color=tensorflow.make_tensor_proto(color))

    found = both(build, images)
    assert found.value[0].image.encoded_image_string[:3] == bytes(color)


@pytest.mark.parametrize("shape", [(2, 50, 2), (4, 50), (1, 30, 1)])
@pytest.mark.parametrize("most", [1, 3])
def test_sounds(both: Any, shape: tuple[int, ...], most: int) -> None:
    sounds = np.clip(RNG.standard_normal(shape), -3, 3).astype(np.float32)
    sounds.reshape(-1)[:5] = [0.5 / 32768, -0.5 / 32768, 1.5 / 32768, 1.0, -1.0]
    both(lambda m, x: m.summary.audio("a", x, 22050.5, max_outputs=most), sounds)


@pytest.mark.parametrize("rate", [0.3, 2.5, 4.2e9])
def test_unusual_sounds(both: Any, rate: float) -> None:
    both(lambda m, x: m.summary.audio("a", x, rate), np.array([[np.nan, 1, -1]], np.float32))
    both(lambda m, x: m.summary.audio("a", x, rate), np.zeros((1, 0, 2), np.float32))


TEXTS = np.array([["one", "two"], ["*three*", ""]], object)


def test_text_and_tensors(both: Any) -> None:
    found = both(lambda m: m.summary.text("t", m.constant(TEXTS)))
    assert found.value[0].metadata.plugin_data.plugin_name == "text"
    for array in (np.float32(2.5), np.arange(6).reshape(2, 3), np.array([True, False]), np.zeros((0, 2), np.int8)):
        both(lambda m, x: m.summary.tensor_summary("t", x), np.asarray(array))


def test_metadata_of_tensors(both: Any, tf: Any) -> None:
    metadata = tf.SummaryMetadata(plugin_data={"plugin_name": "mine", "content": b"\0\1"})

    def build(m: Any, x: Any) -> Any:
        return m.summary.tensor_summary(
            "t", x, "what it is", summary_metadata=metadata, family="f", display_name="shown", collections=["mine"]
        )

    found = both(build, np.ones(2))
    assert found.value[0].metadata.display_name == "shown"


def test_tensor_summary_of_older_graphs(both: Any) -> None:
    description = '{"type_hint": "gadget"}'
    both(lambda m, x: m.raw_ops.TensorSummary(tensor=x, description=description, name="n"), np.ones(2))


def test_merge_all_of_several_summaries(both: Any) -> None:
    def build(m: Any, x: Any) -> Any:
        with m.name_scope("tower"):
            m.summary.scalar("loss", x[0])
            m.summary.scalar("loss", x[1])
            m.summary.scalar("loss", x[1], family="losses")
            m.summary.histogram("spread", x)
        m.summary.scalar("other", x[0], collections=[])
        m.summary.scalar("third", x[0], collections=["summaries", "more"])
        return m.summary.merge_all()

    tags = [value.tag for value in both(build, np.arange(3.0)).value]
    assert tags == ["tower/loss", "tower/loss_1", "losses/tower/losses/loss", "tower/spread", "third"]


def test_merge_all_by_key_and_scope(both: Any) -> None:
    def build(m: Any, x: Any) -> Any:
        parts = [m.summary.scalar(name, x[0]) for name in ("a/x", "a/y", "b/x")]
        assert m.summary.merge_all("none of them") is None
        chosen = m.summary.merge_all(scope="a")
        named = m.summary.merge([chosen, parts[2]], collections=["summaries"], name="all of it")
        return m.summary.merge([named], name="again")

    assert len(both(build, np.arange(2.0)).value) == 3


@pytest.mark.parametrize("name", ["", "two words", "/begins/with", "a:b", "ends/", "x.y-z_1", "tag%"])
def test_invalid_names(both: Any, name: str) -> None:
    both(lambda m: m.summary.scalar(name, 1.0))
    if name:
        both(lambda m: m.summary.scalar("s", 1.0, family=name.rstrip("/")))


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────

REFUSED: dict[str, tuple[Callable[..., Any], Any]] = {
    "tags and values": (lambda m, x: m.raw_ops.ScalarSummary(tags=["a", "b"], values=x), np.ones(3)),
    "a vector as a scalar": (lambda m, x: m.summary.scalar("a", x), np.ones(1)),
    "NaN in a histogram": (lambda m, x: m.summary.histogram("h", x), np.array([1, np.nan])),
    "infinity in a histogram": (lambda m, x: m.summary.histogram("h", x), np.array([1, -np.inf])),
    "rank of images": (lambda m, x: m.summary.image("i", x), np.ones((2, 2, 3), np.float32)),
    "channels": (lambda m, x: m.summary.image("i", x), np.ones((1, 2, 2, 2), np.float32)),
    "no pixels": (lambda m, x: m.summary.image("i", x), np.ones((1, 0, 2, 3), np.float32)),
    "rank of sounds": (lambda m, x: m.summary.audio("a", x, 8000.0), np.ones(5, np.float32)),
    "rate": (lambda m, x: m.summary.audio("a", x, 0.0), np.ones((1, 5), np.float32)),
    "a high rate": (lambda m, x: m.summary.audio("a", x, 1e10), np.ones((1, 5), np.float32)),
    "no channels": (lambda m, x: m.summary.audio("a", x, 8000.0), np.ones((1, 5, 0), np.float32)),
    "many channels": (lambda m, x: m.summary.audio("a", x, 8000.0), np.ones((1, 1, 1 << 16), np.float32)),
    "the same tag": (lambda m, x: m.summary.merge([m.summary.scalar("a", x)] * 2), np.array(1.0)),
    "no summary": (lambda m, x: m.summary.merge([m.as_string(x)]), np.array(1.0)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_step_rejects_wrong_values(tf: Any, name: str) -> None:
    build, array = REFUSED[name]
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(array.dtype, None)
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(build(tf, x), {x: array})
    with aioflow.Graph().as_default():
        mine = aioflow.placeholder(array.dtype.name, None)
        with pytest.raises(aioflow.errors.InvalidArgumentError):
            evaluate([build(aioflow, mine)], {mine: array})


@pytest.mark.parametrize(
    "build",
    [
        lambda m: m.summary.text("t", m.constant(1.0)),
        lambda m: m.summary.scalar("s", m.constant("text")),
        lambda m: m.summary.image("i", m.constant(np.ones((1, 2, 2, 1), np.int32))),
        lambda m: m.summary.image("i", m.zeros([1, 2, 2, 1]), max_outputs=0),
        lambda m: m.summary.merge([]),
    ],
)
def test_graph_rejects_wrong_arguments(tf: Any, build: Any) -> None:
    for module in (tf, aioflow):
        with module.Graph().as_default(), pytest.raises((ValueError, TypeError)):
            build(module)
