"""Summaries: properties besides their messages, which tests/parity/test_summary.py compares with TensorFlow's."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np
import pytest
from PIL import Image

import aioflow as af
from aioflow import errors
from aioflow.testing.evaluate import evaluate


def summary_of(tensor: Any, feeds: Any = None) -> Any:
    return af.Summary.FromString(np.asarray(evaluate([tensor], feeds or {})[0], object).item())


def test_scalar_summary_has_tag_and_collection() -> None:
    with af.name_scope("train"):
        loss = af.summary.scalar("loss", 1.5)
        family = af.summary.scalar("loss", 2.5, family="all", collections=["mine"])
    assert (loss.op.name, family.op.name) == ("train/loss", "train/all/loss")
    assert af.get_collection(af.GraphKeys.SUMMARIES) == [loss]
    assert af.get_collection("mine") == [family]
    merged = summary_of(af.summary.merge([loss, family]))
    assert [(value.tag, value.simple_value) for value in merged.value] == [
        ("train/loss", 1.5),
        ("all/train/all/loss", 2.5),
    ]


def test_a_histogram_counts_every_number_once() -> None:
    numbers = np.random.default_rng(1).standard_normal(10_000) * 100
    histogram = summary_of(af.summary.histogram("h", af.constant(numbers))).value[0].histo
    assert sum(histogram.bucket) == histogram.num == len(numbers)
    assert histogram.sum == pytest.approx(numbers.sum())
    assert histogram.sum_squares == pytest.approx((numbers**2).sum())
    assert (histogram.min, histogram.max) == (numbers.min(), numbers.max())
    below = [int((numbers < limit).sum()) for limit in histogram.bucket_limit]
    assert np.diff([0, *below]).tolist() == list(histogram.bucket)


@pytest.mark.parametrize(("bad", "said"), [(np.nan, "NaN"), (-np.inf, "infinity")])
def test_histogram_of_non_finite_values_names_the_node(bad: float, said: str) -> None:
    node = af.summary.histogram("weights", np.array([1.0, bad]))
    with af.Session() as session, pytest.raises(errors.InvalidArgumentError, match=said) as caught:
        session.run_sync(node)
    assert "weights" in str(caught.value)


async def test_large_image_does_not_block_the_loop() -> None:
    picture = np.random.default_rng(2).random((1, 700, 900, 3)).astype(np.float32)
    async with af.Session() as session:
        value = await session.run(af.summary.image("i", picture, max_outputs=1))
    image = af.Summary.FromString(value).value[0].image
    assert (image.height, image.width, image.colorspace) == (700, 900, 3)
    pixels = np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))
    np.testing.assert_array_equal(pixels, (picture[0] * np.float32(255 / picture.max())).astype(np.uint8))


def test_audio_is_encoded_as_wav() -> None:
    tone = np.sin(np.linspace(0, 20, 100)).astype(np.float32).reshape(1, 50, 2)
    new = summary_of(af.summary.audio("a", tone, 8000.0, max_outputs=1))
    old = summary_of(af.raw_ops.AudioSummary(tag="a", tensor=tone, sample_rate=8000.0, max_outputs=1))
    assert old == new
    with wave.open(io.BytesIO(new.value[0].audio.encoded_audio_string)) as file:
        assert (file.getnchannels(), file.getframerate(), file.getsampwidth()) == (2, 8000, 2)
        samples = np.frombuffer(file.readframes(50), "<i2").reshape(50, 2)
    np.testing.assert_allclose(samples / 32768, tone[0], atol=1 / 32768)


def test_text_rejects_wrong_dtypes() -> None:
    with pytest.raises(errors.DTypeError, match="strings"):
        af.summary.text("t", 1.0)
    with pytest.raises(errors.DTypeError, match="metadata"):
        af.summary.tensor_summary("t", 1.0, summary_metadata=b"text")


def test_summary_description_of_a_tensor_summary() -> None:
    made = af.raw_ops.TensorSummary(tensor=[1.0], description='{"type_hint": "gadget"}')
    definition = made.graph.as_graph_def()
    assert af.summary.get_summary_description(definition.node[-1]).type_hint == "gadget"
    with pytest.raises(errors.InvalidArgumentError, match="TensorSummary"):
        af.summary.get_summary_description(definition.node[0])


def test_merge_of_no_summaries() -> None:
    assert af.summary.merge_all() is None
    with pytest.raises(errors.InvalidArgumentError):
        af.summary.merge([])


def test_bad_color_default_survives_stripping() -> None:
    images = af.placeholder(af.float32, [1, 1, 2, 3], name="images")
    af.summary.image("i", images)
    meta = af.train.export_meta_graph(strip_default_attrs=True)
    (node,) = [node for node in meta.graph_def.node if node.op == "ImageSummary"]
    assert "bad_color" not in node.attr
    with af.Graph().as_default() as other:
        af.train.import_meta_graph(meta)
        fed = np.array([[[[np.nan, 0, 0], [1, 1, 1]]]], np.float32)
        made = summary_of(other.get_tensor_by_name("i:0"), {other.get_tensor_by_name("images:0"): fed})
    pixels = np.asarray(Image.open(io.BytesIO(made.value[0].image.encoded_image_string)))
    assert pixels.tolist() == [[[255, 0, 0], [255, 255, 255]]]
