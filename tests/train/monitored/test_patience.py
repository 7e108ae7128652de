"""Back-off delays: they grow up to a bound, restart after a success, and end with an error at the limit."""

from __future__ import annotations

from itertools import islice

import pytest

from aioflow.errors import DeadlineExceededError, DTypeError, InvalidArgumentError, UnavailableError
from aioflow.train.monitored.patience import Patience, delays


def test_delays_grow_up_to_a_bound() -> None:
    found = list(islice(delays(2.0), 40))
    assert found == sorted(found)
    assert found[0] < 0.1
    assert found[-1] == 2.0


def test_delays_are_at_most_half_of_the_time_passed() -> None:
    """No delay exceeds half of the time that has passed before it, plus 0.1 seconds, or the bound."""
    passed = 0.0
    for delay in islice(delays(1e9), 1, 40):
        passed += delay
        assert delay <= 0.5 * passed + 0.1


def test_success_restarts_the_delays() -> None:
    patience, error = Patience(10.0), UnavailableError("gone")
    assert patience.failed(0.0, error, "it") == 0.0
    first, second = patience.failed(5.0, error, "it"), patience.failed(9.9, error, "it")
    assert 0 < first < second
    patience.succeeded()
    assert patience.failed(20.0, error, "it") == 0.0
    assert patience.failed(29.0, error, "it") == first


def test_error_at_the_limit_names_the_last_failure() -> None:
    patience = Patience(10.0)
    patience.failed(100.0, UnavailableError("first"), "it")
    with pytest.raises(DeadlineExceededError, match="it was not there") as raised:
        patience.failed(110.0, UnavailableError("last"), "it")
    assert "last" in str(raised.value)
    assert patience.failed(200.0, UnavailableError("again"), "it") == 0.0


def test_limit_must_be_a_number() -> None:
    with pytest.raises(DTypeError):
        Patience("long")  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [-1, -0.5, float("-inf"), float("nan")])
def test_negative_or_nan_limit_is_rejected(limit: float) -> None:
    with pytest.raises(InvalidArgumentError):
        Patience(limit)
    assert Patience(0).failed(0.0, UnavailableError("gone"), "it") == 0.0
