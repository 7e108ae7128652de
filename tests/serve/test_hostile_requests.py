"""Decoders of requests raise nothing but their typed errors, whatever a client sends."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import aioflow as af
from aioflow.interop.model import Signature
from aioflow.serve.protocol import Limits, MalformedRequestError, TooLargeError
from aioflow.serve.protocol.rest import json_object
from aioflow.serve.protocol.tf_rest import decode_examples, decode_predict
from aioflow.serve.tokens.engine import Sampling
from aioflow.serve.tokens.streams import read_generate

LIMITS = Limits(body_bytes=1 << 16, json_bytes=1 << 16, rank=4, elements=1 << 10, tensors=4)
REFUSED = suppress(MalformedRequestError, TooLargeError)

NUMBERS = st.integers(-(2**70), 2**70) | st.integers(-2, 300) | st.floats()
TEXTS = st.text(max_size=6) | st.sampled_from(["x", "tag", "sensor", "predict", "rows", "\ud800", "YQ==", "timeout"])
BYTES = st.fixed_dictionaries({"b64": TEXTS | NUMBERS})
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | BYTES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
PARAMETERS = st.dictionaries(
    st.sampled_from(["timeout", "priority", "temperature", "top_k", "seed", "max_tokens"]) | TEXTS, VALUES, max_size=3
)


LISTS = st.lists(NUMBERS, max_size=3) | st.lists(TEXTS | BYTES, max_size=3)
FEATURES = st.dictionaries(TEXTS, LISTS | VALUES, max_size=3)


def bodies(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Return bodies with some of these members, of which each may be any value; some bodies are cut off or altered."""
    optional = {name: value | VALUES for name, value in members.items()}
    whole = st.fixed_dictionaries({}, optional=optional).map(lambda document: json.dumps(document).encode())
    cut = st.tuples(whole, st.integers(0, 200), st.binary(max_size=3)).map(lambda t: t[0][: t[1]] + t[2] + t[0][t[1] :])
    return whole | cut | st.binary(max_size=40)


def signatures() -> dict[str | None, Signature]:
    with af.Graph().as_default():
        tag, rows = af.placeholder("string", [None], name="tag"), af.placeholder("float32", [None, 2], name="rows")
        sensor, x = af.placeholder("int64", [None, 2, 2], name="sensor"), af.placeholder("bool", None, name="x")
        examples = af.placeholder("string", [None], name="examples")
        y = af.identity(examples)
        return {
            None: Signature({"tag": tag, "rows": rows, "sensor": sensor}, {"y": y}, optional={"x": x}),
            "predict": Signature({"rows": rows}, {"y": y}),
            "x": Signature({"examples": examples}, {"y": y}, method="tensorflow/serving/classify"),
        }


SIGNATURES = signatures()


def signature_of(name: str | None) -> Signature:
    try:
        return SIGNATURES[name]
    except KeyError as error:
        raise MalformedRequestError("no such signature") from error


ROWS = st.lists(
    st.fixed_dictionaries({}, optional={"tag": TEXTS | BYTES, "rows": st.lists(NUMBERS, max_size=3), "sensor": VALUES}),
    max_size=3,
)
NAMES = st.sampled_from(["", "predict", "x"])


@given(bodies(instances=ROWS | LISTS, inputs=VALUES, signature_name=NAMES, parameters=PARAMETERS))
def test_predict_is_decoded_or_refused(body: bytes) -> None:
    with REFUSED:
        found = decode_predict(body, signature_of, LIMITS)
        inputs = signature_of(found.request.parameters.get("signature")).all_inputs
        for name, array in found.request.inputs.items():
            assert array.dtype == inputs[name].dtype.np_dtype
            assert array.size <= LIMITS.elements


@given(bodies(examples=st.lists(FEATURES, max_size=3), context=FEATURES, signature_name=NAMES, parameters=PARAMETERS))
def test_examples_are_decoded_or_refused(body: bytes) -> None:
    with REFUSED:
        request = decode_examples(body, signature_of, "classify", LIMITS)
        assert all(type(each) is bytes for each in request.inputs["examples"])


TOKENS = st.lists(st.integers(-1, 2**40), max_size=5)


def test_unknown_parameters_of_generate_may_have_any_form() -> None:
    assert read_generate({"tokens": [1], "parameters": {"priority": None, "else": {}}}).tokens == (1,)


@given(bodies(text_input=TEXTS, tokens=TOKENS, parameters=PARAMETERS, id=TEXTS), st.integers(1, 9))
def test_generate_is_decoded_or_refused(body: bytes, size: int) -> None:
    with REFUSED:
        request = read_generate(json_object(body, LIMITS))
        assert (request.text is None) != (request.tokens is None)
        assert request.most >= 1
        logits = np.linspace(-1.0, 1.0, size, dtype=np.float32)
        assert isinstance(request.sampling, Sampling)
        assert 0 <= request.sampling(logits, 0) < size
