"""Partially known shapes: TensorFlow 1's `Dimension` and `TensorShape`, and the plain dims beneath."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aioflow as af
from aioflow.errors import InvalidArgumentError
from aioflow.graph.shapes import (
    Dimension,
    Dims,
    TensorShape,
    broadcast_dims,
    dims_of,
    format_dims,
    is_compatible,
    merge_dims,
    num_elements,
)

# -- Dimension -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compute", "value"),
    [
        (lambda d: d + 2, 9),
        (lambda d: 2 + d, 9),
        (lambda d: d - 2, 5),
        (lambda d: 10 - d, 3),
        (lambda d: d * 2, 14),
        (lambda d: 2 * d, 14),
        (lambda d: d // 2, 3),
        (lambda d: 15 // d, 2),
        (lambda d: d % 4, 3),
        (lambda d: 15 % d, 1),
        (lambda d: d + Dimension(1), 8),
    ],
)
def test_arithmetic_of_dimensions(compute: Callable[[Any], Any], value: int) -> None:
    known, unknown = compute(Dimension(7)), compute(Dimension(None))
    assert isinstance(known, Dimension)
    assert known.value == value
    assert isinstance(unknown, Dimension)
    assert unknown.value is None


def test_arithmetic_with_an_unknown_operand_is_unknown() -> None:
    for result in (Dimension(3) + None, Dimension(3) * Dimension(None), Dimension(3) // None, None % Dimension(3)):
        assert result.value is None


def test_comparison_with_an_unknown_dimension_returns_none() -> None:
    assert Dimension(3) < 4
    assert Dimension(3) <= Dimension(3)
    assert Dimension(4) > 3
    assert not Dimension(4) >= 5
    for result in (Dimension(None) < 4, Dimension(3) <= None, Dimension(3) > Dimension(None), Dimension(None) >= 3):
        assert result is None


def test_a_dimension_equals_its_value() -> None:
    assert Dimension(3) == 3
    assert Dimension(3) == Dimension(3)
    assert Dimension(3) != 4
    assert Dimension(None) == None  # noqa: E711  # a Dimension compares by value
    assert Dimension(None) != 3
    assert hash(Dimension(3)) == hash(3)
    assert Dimension(Dimension(5)).value == 5


def test_a_known_dimension_is_an_index() -> None:
    assert int(Dimension(3)) == 3
    assert np.zeros(4)[Dimension(3)] == 0
    assert list(range(Dimension(2))) == [0, 1]
    with pytest.raises(InvalidArgumentError, match="unknown"):
        int(Dimension(None))


def test_a_known_dimension_is_a_number_for_ops() -> None:
    x = af.placeholder("float32", [2, None])
    assert af.zeros([x.shape[0], 3]).shape == (2, 3)
    assert af.reshape(x, [x.shape[0], af.size(x) // x.shape[0]]).shape == (2, None)
    assert (af.constant(2) * x.shape[0]).dtype is af.int32
    assert (x.shape[0] * af.constant(2)).op.type == "Mul"
    with pytest.raises(InvalidArgumentError, match="the dimension is unknown"):
        af.zeros([x.shape[1], 3])
    with pytest.raises(TypeError):
        x.shape[0] + "rows"  # type: ignore[operator]  # what the test is about


@pytest.mark.parametrize("value", [-1, 2.5, "3", [3], 3.0])
def test_invalid_dimensions_are_rejected(value: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Dimension(value)


def test_a_difference_below_zero_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError):
        Dimension(3) - 5


def test_dimensions_merge_if_compatible() -> None:
    assert Dimension(3).merge_with(None) == 3
    assert Dimension(None).merge_with(3) == 3
    assert Dimension(None).merge_with(None).value is None
    with pytest.raises(InvalidArgumentError) as caught:
        Dimension(3).merge_with(4)
    assert (str(caught.value.expected), str(caught.value.actual)) == ("3", "4")
    assert Dimension(3).is_compatible_with(None)
    assert not Dimension(3).is_compatible_with(4)


def test_str_and_repr_of_dimensions() -> None:
    assert (str(Dimension(3)), str(Dimension(None))) == ("3", "?")
    assert repr(Dimension(None)) == "Dimension(None)"


# -- TensorShape ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dims"),
    [
        (None, None),
        ([], ()),
        ([2, 3], (2, 3)),
        ((2, None), (2, None)),
        ([2, -1], (2, None)),
        ([Dimension(2), Dimension(None)], (2, None)),
        (TensorShape([2]), (2,)),
        (3, (3,)),
        (-1, (None,)),
        (np.int64(3), (3,)),
        (np.array(3), (3,)),
        (np.array([2, 3]), (2, 3)),
        (Dimension(3), (3,)),
        (iter([2, 3]), (2, 3)),
        (range(3), (0, 1, 2)),
    ],
)
def test_accepted_forms_of_a_shape(value: Any, dims: Dims) -> None:
    result = dims_of(value)
    assert result == dims
    assert result is None or all(d is None or type(d) is int for d in result)


@pytest.mark.parametrize("value", [[-2], "ab", [1.5], 1.5, [[1]], object(), [2, "x"]])
def test_invalid_shapes_are_rejected(value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        TensorShape(value)
    assert caught.value.expected is not None
    assert caught.value.actual is not None


def test_reading_a_shape() -> None:
    shape = TensorShape([2, None, 4])
    assert shape.as_list() == [2, None, 4]
    assert (shape.ndims, shape.rank, len(shape)) == (3, 3, 3)
    assert [d.value for d in shape] == [2, None, 4]
    assert [d.value for d in shape.dims or ()] == [2, None, 4]
    assert isinstance(shape[0], Dimension)
    assert shape[-1] == 4
    assert shape[1].value is None
    assert shape[1:] == TensorShape([None, 4])
    assert shape[::2] == [2, 4]
    assert not shape.is_fully_defined()
    assert shape.num_elements() is None
    assert TensorShape([2, 3]).num_elements() == 6
    assert TensorShape([]).num_elements() == 1
    with pytest.raises(IndexError):
        shape[3]


def test_a_shape_of_unknown_rank() -> None:
    shape = TensorShape(None)
    assert shape.ndims is None
    assert shape.dims is None
    assert shape.num_elements() is None
    assert not shape
    assert not shape.is_fully_defined()
    assert shape[4].value is None
    for use in (shape.as_list, lambda: len(shape), lambda: list(shape)):
        with pytest.raises(InvalidArgumentError, match="rank is unknown"):
            use()


def test_closed_slices_of_an_unknown_rank_have_a_known_length() -> None:
    shape = TensorShape(None)
    assert shape[1:3].as_list() == [None, None]
    assert shape[:2].as_list() == [None, None]
    assert shape[3:1].as_list() == []
    for open_end in (shape[1:], shape[:-1], shape[-2:], shape[:4:2]):
        assert open_end.ndims is None


def test_equality_of_shapes() -> None:
    assert TensorShape([2, None]) == TensorShape([2, None]) == [2, None] == TensorShape((2, -1))
    assert TensorShape([2, None]) != TensorShape([2, 3])
    assert TensorShape(None) == TensorShape(None)
    assert TensorShape(None) != TensorShape([])
    assert TensorShape([2]) != "abc"
    assert len({TensorShape([2]), TensorShape((2,)), TensorShape(None)}) == 2
    assert TensorShape([])  # a scalar's shape is known


def test_shapes_are_joined_with_lists() -> None:
    more: list[int | None] = [2, None]
    assert TensorShape([1]) + more == [1, 2, None]
    assert more + TensorShape([1]) == [2, None, 1]
    assert (TensorShape(None) + more).ndims is None
    assert TensorShape([1]).concatenate(None).ndims is None


def test_shapes_merge_if_compatible() -> None:
    assert TensorShape([2, None]).merge_with([None, 3]) == [2, 3]
    assert TensorShape(None).merge_with([2]) == [2]
    for other in ([3, 3], [2]):
        with pytest.raises(InvalidArgumentError) as caught:
            TensorShape([2, 3]).merge_with(other)
        assert caught.value.expected == "(2, 3)"


@pytest.mark.parametrize(
    ("use", "fails"),
    [
        (lambda s: s.with_rank(2), False),
        (lambda s: s.with_rank(3), True),
        (lambda s: s.with_rank_at_least(2), False),
        (lambda s: s.with_rank_at_least(3), True),
        (lambda s: s.with_rank_at_most(2), False),
        (lambda s: s.with_rank_at_most(1), True),
        (lambda s: s.assert_has_rank(1), True),
        (lambda s: s.assert_same_rank([1, 1]), False),
        (lambda s: s.assert_same_rank([1]), True),
        (lambda s: s.assert_same_rank(None), False),
        (lambda s: s.assert_is_compatible_with([2, 9]), False),
        (lambda s: s.assert_is_compatible_with([3, 9]), True),
        (lambda s: s.assert_is_fully_defined(), True),
    ],
)
def test_assertions_about_shapes(use: Callable[[TensorShape], Any], fails: bool) -> None:
    if not fails:
        use(TensorShape([2, None]))
    else:
        with pytest.raises(InvalidArgumentError):
            use(TensorShape([2, None]))


def test_an_unknown_rank_passes_every_assertion_about_ranks() -> None:
    unknown = TensorShape(None)
    assert unknown.with_rank(2) == [None, None]
    assert unknown.with_rank_at_least(5).ndims is None
    assert unknown.with_rank_at_most(0).ndims is None
    unknown.assert_is_compatible_with([1, 2])


def test_str_and_repr_of_shapes() -> None:
    assert [format_dims(d) for d in (None, (), (3,), (2, None))] == ["<unknown>", "()", "(3,)", "(2, ?)"]
    assert str(TensorShape([2, None])) == "(2, ?)"
    assert repr(TensorShape([2, None])) == "TensorShape([2, None])"
    assert repr(TensorShape(None)) == "TensorShape(None)"


# -- plain dims ----------------------------------------------------------------------------------------------------

sizes = st.one_of(st.none(), st.integers(0, 3))
shapes = st.one_of(st.none(), st.lists(sizes, max_size=3).map(tuple))


def completions(dims: Dims) -> set[tuple[int, ...]]:
    """Return all fully known shapes up to rank 3, with sizes 0..3, that fit."""
    ranks = range(4) if dims is None else (len(dims),)
    every = itertools.chain.from_iterable(itertools.product(range(4), repeat=r) for r in ranks)
    return {s for s in every if dims is None or all(d is None or d == n for d, n in zip(dims, s, strict=True))}


@given(shapes, shapes)
def test_merging_is_the_intersection_of_fitting_shapes(a: Dims, b: Dims) -> None:
    both = completions(a) & completions(b)
    assert is_compatible(a, b) is is_compatible(b, a) is bool(both)
    if both:
        assert completions(merge_dims(a, b)) == both
    else:
        with pytest.raises(InvalidArgumentError):
            merge_dims(a, b)


@given(st.lists(shapes, min_size=1, max_size=3))
def test_static_broadcasting_agrees_with_numpy(dims: list[Dims]) -> None:
    """For all fully known shapes tried, NumPy's result fits the static one. An error means that none broadcasts."""
    outcomes = []
    few = [sorted(completions(d))[::3] or sorted(completions(d)) for d in dims]
    for choice in itertools.islice(itertools.product(*few), 200):
        try:
            outcomes.append(np.broadcast_shapes(*choice))
        except ValueError:
            continue
    try:
        static = broadcast_dims(dims)
    except InvalidArgumentError:
        assert not outcomes
        return
    for shape in outcomes:
        assert is_compatible(static, shape), (dims, static, shape)


@pytest.mark.parametrize(
    ("dims", "result"),
    [
        ([(2, 3), (3,)], (2, 3)),
        ([(2, 1), (1, 3)], (2, 3)),
        ([(None,), (3,)], (3,)),
        ([(None,), (1,)], (None,)),
        ([(0,), (1,)], (0,)),
        ([(), ()], ()),
        ([(2,), None], None),
        ([(1, None), (5, 1, 1)], (5, 1, None)),
    ],
)
def test_broadcast_dims_follow_numpy(dims: list[Dims], result: Dims) -> None:
    assert broadcast_dims(dims) == result


def test_sizes_that_do_not_broadcast_are_named() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        broadcast_dims([(2, 3), (4,)])
    assert caught.value.actual == "(2, 3) and (4,)"


def test_numbers_of_elements() -> None:
    assert [num_elements(d) for d in (None, (), (2, 3), (2, None), (0, 5))] == [None, 1, 6, None, 0]
    assert num_elements((2**40, 2**40)) == 2**80


def test_ranks_and_positions_may_be_arrays_of_one_integer() -> None:
    shape = TensorShape([2, None])
    one: Any = np.asarray(1)
    two: Any = np.asarray(2)
    assert (shape[one].value, shape[:one], shape.with_rank_at_least(one)) == (None, TensorShape([2]), shape)
    assert shape.with_rank(two) == shape
    with pytest.raises(InvalidArgumentError):
        shape.with_rank(one)


def test_tensor_shape_converts_to_integers_for_ops() -> None:
    for sizes in ([], [2, 3]):
        shape = TensorShape(sizes)
        assert np.asarray(shape).dtype == np.int64
        assert af.convert_to_tensor(shape).dtype is af.int32
        assert af.convert_to_tensor(shape, "int64").dtype is af.int64
        assert af.convert_to_tensor([shape]).dtype is af.int32
        assert af.concat([shape, [4]], 0).dtype is af.int32
        assert (af.constant(sizes, "int32") + shape).dtype is af.int32
    assert af.reshape([1.0], TensorShape([])).dims == ()
    with pytest.raises(InvalidArgumentError, match="rank is unknown"):
        af.convert_to_tensor(TensorShape(None))


@pytest.mark.parametrize(
    "value", [TensorShape(None), TensorShape([]), TensorShape([2, None]), Dimension(None), Dimension(3)]
)
def test_shapes_can_be_pickled_and_copied(value: Any) -> None:
    for made in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value), copy.copy(value)):
        assert type(made) is type(value)
        assert repr(made) == repr(value)
