"""String ops against TensorFlow: values and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.parity.test_parsing import same

WORDS = ["a b  c", "", " x ", "one,two;;three", "h€llo wörld", "tab\tline\n end"]


@pytest.mark.parametrize("sep", [" ", "", ",;", ";", ",", "€", "xyz"])
@pytest.mark.parametrize("skip", [True, False])
def test_string_split(parity: Any, sep: str, skip: bool) -> None:
    same(*parity.either(lambda m: list(parts(m.string_split(WORDS, sep, skip)))))
    same(*parity.either(lambda m: list(parts(m.string_split(WORDS, delimiter=sep, skip_empty=skip)))))


def parts(sparse: Any) -> list[Any]:
    return [sparse.indices, sparse.values, sparse.dense_shape]


@pytest.mark.parametrize("sep", [None, "", " ", ";", ";;", "b  "])
@pytest.mark.parametrize("limit", [-1, 0, 1, 2, 99])
def test_split_like_python(parity: Any, sep: str | None, limit: int) -> None:
    same(*parity.either(lambda m: list(parts(m.strings.split(WORDS, sep, limit)))))
    same(*parity.either(lambda m: list(parts(m.strings.split(["  a  b  c  ", " "], sep, limit)))))


def test_split_of_other_ranks(parity: Any) -> None:
    same(*parity.either(lambda m: list(parts(m.strings.split("a b")))))
    same(*parity.either(lambda m: list(parts(m.string_split([["a b"]])))))
    same(*parity.either(lambda m: list(parts(m.string_split(["a b"], ["a", "b"])))))


def test_strip_and_case(parity: Any) -> None:
    for texts in (WORDS, "ÄÖü ß x", [b"\xff A"], [["  Aa\0 "]]):
        same(*parity.either(lambda m, t=texts: [m.string_strip(t), m.strings.lower(t), m.strings.upper(t)]))
    for text in ("ÄÖü x", "abc€"):
        same(*parity.either(lambda m, t=text: [m.strings.lower(t, "utf-8"), m.strings.upper(t, encoding="utf-8")]))
    same(*parity.either(lambda m: [m.strings.upper("a", encoding="latin-1")]))


def test_base64(parity: Any) -> None:
    for text in (b"", b"a", b"ab", b"abc", bytes(range(256)), [[b"x", b"yz"]]):
        same(*parity.either(lambda m, t=text: [m.encode_base64(t), m.encode_base64(t, pad=True)]))
    for code in (
        "",
        "YQ",
        "YQ==",
        "YWI",
        "YWI=",
        "YWJj",
        "_-8",
        "a",
        "YQ=",
        "YQ===",
        "+/8",
        "Y Q",
        "YWJjZ",
        "=",
        "====",
    ):
        same(*parity.either(lambda m, c=code: [m.decode_base64(c)]))


REGEX = [
    ("a+", "x", "caaat aa"), ("(l+)(o)", r"\2\1", "hello loo"), ("", "-", "abc"), ("^", ">", "a\nb"),
    ("$", "<", "a\n"), (r"\d{2,3}", r"<\0>", "1 12 1234"), ("[[:alpha:]]+", "w", "ab1Cd"),
    ("[^[:space:]]", ".", "a b\tc"), (".", "x", "a€b"), (r"\bfoo\b", "bar", "foo food foo"),
    ("(?i)ABC", "x", "abc aBc"), ("(?P<n>a)b", r"\1", "ab"), ("[]a]", "x", "]a["), (r"\Qa.b\E", "x", "a.b axb"),
    ("a|b", r"\\", "a"), (r"\w", "x", "ä1"), (r"\s", "", "a \u00a0b"), ("(a)|b", r"[\1]", "ab"), (r"a\z", "x", "aa"),
    (r"a$", "x", "a\n"), ("(", "x", "a"), (r"(a)\1", "x", "aa"), ("(?=a)", "x", "a"), ("a", r"\1", "a"),
    ("a", "\\", "a"), ("[z-a]", "x", "a"), ("a**", "x", "a"), ("*", "x", "a"), (r"\x{20AC}", "E", "5€"),
    ("x*", "-", "abc"), ("x*", "-", "axb"),
    ("[[:foo:]]", "-", "axb"), ("a{,2}", "x", "a{,2}"), ("[a&&b]", "x", "a&b"), ("[--a]", "x", "-a"),
    (r"[\d-]", "x", "1-a"), ("(?s).", "x", "\n"), (".", "x", "\n"), ("(?m)^b$", "x", "a\nb\nc"),
    ("(?m)$", "x", "a\nb"), (r"\pL", "x", "aé1"), (r"[\p{Greek}]+", "x", "αβa"), ("[[:^alpha:]]", "x", "a1"),
    ("(a*)*b", "x", "a" * 30 + "b"), ("", "-", "äö"), ("b*", "-", "äbö"), (r"(a)(b)?", r"\2\1\2", "aba"),
    ("a{1000}", "x", "a" * 1000), ("(a{1000}){1000}", "x", "a"), (r"\pN{2", "x", "12"),
]  # fmt: skip
WRONG = {
    ("a", r"\1"),
    ("a", "\\"),
}  # TensorFlow logs a wrong rewrite and returns a value; aioflow rejects it


@pytest.mark.parametrize(("pattern", "rewrite", "text"), REGEX)
@pytest.mark.parametrize("everywhere", [True, False])
def test_regex(parity: Any, pattern: str, rewrite: str, text: str, everywhere: bool) -> None:
    mine, theirs = parity.either(lambda m: [m.regex_replace([text, ""], pattern, rewrite, everywhere)])
    fixed = parity.either(lambda m: [m.regex_replace([text, ""], m.constant(pattern), m.constant(rewrite), everywhere)])
    full = parity.either(lambda m: [m.strings.regex_full_match([text, "aa", "b", "\n"], pattern)])
    if (pattern, rewrite) in WRONG:
        assert (mine, fixed[0]) == ("refused", "refused")
        return
    same(mine, theirs)
    same(*fixed)
    same(*full)


def test_hashes(parity: Any) -> None:
    texts = ["", "a", "abcdefg", "abcdefgh", "abcdefghi", "x" * 100, "h€llo", "\0\0"]
    for buckets in (1, 10, 2**40, 2**63 - 1):
        same(*parity.either(lambda m, n=buckets: [m.string_to_hash_bucket(texts, n)]))
        for key in ([1, 2], [-1, 2**62], [0, 0]):
            same(*parity.either(lambda m, n=buckets, k=key: [m.string_to_hash_bucket_strong(texts, n, k)]))
    same(*parity.either(lambda m: [m.string_to_hash_bucket("a", 0)]))
    lengths = [
        bytes(range(n % 256)) * (1 + n // 256) for n in [*range(200), 1000]
    ]  # the hash algorithm depends on the length
    same(*parity.either(lambda m: [m.string_to_hash_bucket_fast(lengths, 1 << 60)]))


JOINED: list[Any] = [0, 1, -1, [0, 1], [1, 0], None, [], [0, 0], 2]


@pytest.mark.parametrize("axis", JOINED)
@pytest.mark.parametrize("keep", [False, True])
def test_reduce_join(parity: Any, axis: Any, keep: bool) -> None:
    axes = axis if axis != [] else np.zeros(0, np.int32)
    same(*parity.either(lambda m: [m.reduce_join([["a", "b", "c"], ["d", "e", "f"]], axes, keep, "-")]))
    same(*parity.either(lambda m: [m.reduce_join(m.zeros([0, 2], m.string), axes, keep, "-")]))
    if axis in (0, [1, 0]):
        texts = np.array([["a", "b"], ["c", "d"]], object)
        parity(lambda m, x: [m.reduce_join(x, axes, keep)], texts)


def test_static_shapes(parity: Any) -> None:
    texts = np.array(["a b", "c"], object)
    parity(lambda m, x: [*parts(m.string_split(x)), m.string_strip(x), m.regex_replace(x, "a", "b")], texts)
