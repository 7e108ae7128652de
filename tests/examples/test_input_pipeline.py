"""`examples/input_pipeline.py`: files, readers, queues and training, end to end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import aioflow as af
from examples import input_pipeline
from tests.support.processes import SECONDS, program


@pytest.fixture(scope="module")
def report() -> input_pipeline.Report:
    return input_pipeline.main(["--epochs", "6", "--shards", "5", "--readers", "3", "--batch", "50"])


def test_training_learns_from_record_files(report: input_pipeline.Report) -> None:
    assert report.accuracy > 0.92


def test_each_record_is_read_once_per_epoch(report: input_pipeline.Report) -> None:
    """The last batch is smaller: there are 1438 records."""
    assert len(report.seen) == 1438
    assert report.seen.tolist() == [6] * 1438


def test_every_digit_is_written_to_one_file(tmp_path: Path) -> None:
    images = np.arange(7 * 4, dtype=np.uint8).reshape(7, 4)
    names = input_pipeline.write_records(tmp_path, images, np.arange(10, 17), 3)
    records = [af.train.Example.FromString(r).features.feature for n in names for r in af.io.tf_record_iterator(n)]
    found = {
        r["id"].int64_list.value[0]: (r["label"].int64_list.value[0], r["image"].bytes_list.value[0]) for r in records
    }
    assert found == {i: (10 + i, image.tobytes()) for i, image in enumerate(images)}
    assert len(records) == 7


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_ends_training_cleanly(tmp_path: Path) -> None:
    """No traceback is printed, and no files are left."""
    root = Path(__file__).parents[2]
    command = ["-W", "error", "-m", "examples.input_pipeline", "--epochs", "1000"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with program(*command, cwd=root, env=environment, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1,438 records in 8 files\n"
        progress = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    assert re.fullmatch(r"step 100: loss \d\.\d{3}, [\d,]+ records/s, \d+ in the queue\n", progress)
    assert errors == "interrupted\n"
    assert process.returncode == 1
    assert list(tmp_path.iterdir()) == []
