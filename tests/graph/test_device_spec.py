"""Device names: parsing, printing, merging, matching."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.errors import InvalidArgumentError
from aioflow.graph.device_spec import DeviceSpec

FULL = "/job:worker/replica:0/task:3/device:GPU:1"


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("", ""),
        (FULL, FULL),
        ("/gpu:0", "/device:GPU:0"),
        ("gpu:0", "/device:GPU:0"),
        ("/CPU:2", "/device:CPU:2"),
        ("/device:gpu:0", "/device:GPU:0"),
        ("/device:XPU_X:7", "/device:XPU_X:7"),
        ("/gpu", "/device:GPU:*"),
        ("/gpu:*", "/device:GPU:*"),
        ("/device:GPU", "/device:GPU:*"),
        ("/task:1/job:x", "/job:x/task:1"),
        ("/job:w/replica:*/task:*", "/job:w"),
        ("/job:my-job.v2_a", "/job:my-job.v2_a"),
        ("/job:a/cpu:0", "/job:a/device:CPU:0"),
        ("/task:007", "/task:7"),
        ("/Gpu:1", "/device:GPU:1"),
        ("/tpu:0", "/device:TPU:0"),
        ("/device:tpu:0", "/device:TPU:0"),
        ("/device:xla_gpu:2", "/device:xla_gpu:2"),
        ("/device:*:3", "/device:*:3"),
        ("/device:*", ""),
        ("/job:*", ""),
        ("/job:Worker/task:1/device:GPU:*", "/job:Worker/task:1/device:GPU:*"),
    ],
)
def test_names_and_their_canonical_form(name: str, canonical: str) -> None:
    spec = DeviceSpec.from_string(name)
    assert spec.to_string() == str(spec) == canonical
    assert DeviceSpec.from_string(canonical) == spec


@pytest.mark.parametrize(
    "name",
    [
        "/foo:1",
        "/job:",
        "/job:1a",
        "/task:x",
        "/task:-1",
        "/gpu:x",
        "/gpux:0",
        "/device:GPU:0:1",
        "/gpu:0/",
        "gpu 0",
        "/cpu:0/gpu:1",
        "/cpu:0/device:GPU:1",
        "/job:a b",
        "/JOB:a",
        "/job:a/Task:1",
        "/xla_gpu:0",
        "/device:*:0/gpu:0",
    ],
)
def test_malformed_names_are_rejected(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="malformed device name") as caught:
        DeviceSpec.from_string(name)
    assert caught.value.actual == name


@pytest.mark.parametrize(
    ("outer", "inner", "merged"),
    [
        ("/gpu:0", "/cpu:1", "/device:CPU:1"),
        ("/gpu:0", "/job:w/task:3", "/job:w/task:3/device:GPU:0"),
        ("/job:a/task:1", "/job:b", "/job:b/task:1"),
        ("/gpu:3", "/gpu", "/device:GPU:3"),
        ("/gpu:3", "/cpu", "/device:CPU:3"),  # type and index are separate parts
        ("", "/gpu:0", "/device:GPU:0"),
        ("/gpu:0", "", "/device:GPU:0"),
        ("/gpu:0", "/device:*:2", "/device:GPU:2"),
        ("/job:a/cpu:1", "/job:*/gpu:*", "/job:a/device:GPU:1"),
    ],
)
def test_the_inner_name_wins_part_by_part(outer: str, inner: str, merged: str) -> None:
    outer_spec, inner_spec = DeviceSpec.from_string(outer), DeviceSpec.from_string(inner)
    assert outer_spec.override(inner_spec).to_string() == merged
    assert outer_spec.make_merged_spec(inner_spec).to_string() == merged


def test_a_spec_made_of_parts_equals_the_parsed_name() -> None:
    spec = DeviceSpec(job="w", device_type="gpu", device_index=1)
    assert spec == DeviceSpec.from_string("/job:w/gpu:1")
    assert spec.matches(DeviceSpec.from_string("/job:w/replica:0/task:2/device:GPU:1"))
    assert spec.replace(task=3, device_index=None).to_string() == "/job:w/task:3/device:GPU:*"
    assert spec.to_string() == "/job:w/device:GPU:1"


@pytest.mark.parametrize(
    ("one", "other", "part"),
    [
        ("/gpu:0", "/gpu:1", "device_index"),
        ("/gpu:0", "/cpu:1", "device_type"),
        ("/gpu:0/task:1", "/cpu:0/task:2", "task"),
        ("/replica:1", "/replica:0", "replica"),
        ("/job:a/task:0", "/job:b/task:1", "job"),
        ("/gpu", "/gpu:1", None),
        ("/job:a", "/gpu:1", None),
        ("", "/job:a/gpu:1", None),
    ],
)
def test_conflict_returns_the_first_differing_part(one: str, other: str, part: str | None) -> None:
    first, second = DeviceSpec.from_string(one), DeviceSpec.from_string(other)
    assert first.conflict(second) == second.conflict(first) == part


@pytest.mark.parametrize("partial", ["", "/gpu:1", "/gpu", "/job:worker", "/task:3", "/job:worker/task:3/gpu:*", FULL])
def test_a_partial_name_that_matches(partial: str) -> None:
    assert DeviceSpec.from_string(partial).matches(DeviceSpec.from_string(FULL))


@pytest.mark.parametrize("partial", ["/gpu:0", "/cpu:1", "/job:ps", "/task:1", "/replica:1"])
def test_a_partial_name_that_does_not_match(partial: str) -> None:
    assert not DeviceSpec.from_string(partial).matches(DeviceSpec.from_string(FULL))


numbers = st.one_of(st.none(), st.integers(0, 99))
specs = st.builds(
    DeviceSpec,
    st.one_of(st.none(), st.from_regex(r"[A-Za-z][A-Za-z0-9_.\-]{0,8}", fullmatch=True)),
    numbers,
    numbers,
    st.one_of(st.none(), st.sampled_from(["CPU", "GPU", "TPU_X", "xla_cpu"])),
    numbers,
)


@given(specs)
def test_printing_and_parsing_are_inverse(spec: DeviceSpec) -> None:
    assert DeviceSpec.from_string(spec.to_string()) == spec


@given(specs, specs)
def test_names_conflict_if_no_device_matches_both(a: DeviceSpec, b: DeviceSpec) -> None:
    merged = a.override(b)
    filled = DeviceSpec("x", 100, 100, "X", 100).override(merged)
    assert (a.conflict(b) is None) == (a.matches(filled) and b.matches(filled))


@given(specs, specs, specs)
def test_overriding_is_associative(a: DeviceSpec, b: DeviceSpec, c: DeviceSpec) -> None:
    assert a.override(b).override(c) == a.override(b.override(c))
    assert a.override(DeviceSpec()) == a
