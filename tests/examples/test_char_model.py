"""`examples/char_model.py` on generated text: it learns more than the frequencies of letters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from examples import char_model

WORDS = ("the", "loop", "runs", "backwards", "over", "stacks", "that", "its", "body", "keeps")


def test_training_learns_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    text = " ".join(rng.choice(WORDS, 6000))
    path = tmp_path / "text.txt"
    path.write_text(text)
    counts = np.unique(list(text), return_counts=True)[1] / len(text)
    nats = char_model.main(
        ["--text", str(path), "--units", "48", "--batch", "16", "--steps", "24", "--seconds", "300", "--batches", "300"]
    )
    assert nats < 0.5 * -(counts * np.log(counts)).sum()
    written = capsys.readouterr().out.split("It writes:")[1].split()
    assert sum(word in WORDS for word in written) > 0.6 * len(written)


def test_training_learns_as_well_in_bfloat16(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(" ".join(np.random.default_rng(0).choice(WORDS, 3000)))
    small = ["--text", str(path), "--units", "24", "--batch", "16", "--steps", "16", "--seconds", "300"]
    found = {p: char_model.main([*small, "--batches", "60", "--precision", p]) for p in ("float32", "bfloat16")}
    assert found["bfloat16"] != found["float32"]
    assert found["bfloat16"] == pytest.approx(found["float32"], rel=0.01)


def test_batches_cover_the_text_once() -> None:
    codes = np.arange(101, dtype=np.int32)
    found = list(char_model.batches(codes, rows=4, steps=5))
    assert [anew for *_, anew in found] == [True, False, False, False, False]
    seen = np.concatenate([inputs for inputs, *_ in found])
    assert sorted(seen.reshape(-1)) == list(range(100))
    assert all((targets == inputs + 1).all() for inputs, targets, _ in found)
