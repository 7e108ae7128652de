"""`examples/input_pipeline.py`: files, readers, queues and training, end to end."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import aioflow as af
from examples import input_pipeline


def test_it_learns_from_record_files() -> None:
    assert input_pipeline.main(["--steps", "150", "--shards", "4", "--readers", "3", "--batch", "64"]) > 0.9


def test_every_digit_is_in_one_of_the_files(tmp_path: Path) -> None:
    images = np.arange(7 * 4, dtype=np.uint8).reshape(7, 4)
    names = input_pipeline.write_records(tmp_path, images, np.arange(7), 3)
    records = [af.train.Example.FromString(r).features.feature for n in names for r in af.io.tf_record_iterator(n)]
    found = {r["label"].int64_list.value[0]: r["image"].bytes_list.value[0] for r in records}
    assert found == {i: image.tobytes() for i, image in enumerate(images)}
