"""Templates: names and sharing of their variables, and their errors."""

from __future__ import annotations

import pytest

import aioflow as af
from aioflow.errors import DTypeError, InvalidArgumentError
from tests.support.template_cases import CASES


@pytest.mark.parametrize("name", CASES)
def test_template_makes_the_names_of_the_table(name: str) -> None:
    with af.Graph().as_default():
        assert CASES[name].program(af) == CASES[name].result


def test_errors_name_the_template_and_the_variable() -> None:
    with af.Graph().as_default():
        template = af.make_template("t", lambda: af.Variable(1.0, name="v"))
        template()
        with pytest.raises(InvalidArgumentError, match=r"'t' made trainable variables in a call after the first") as e:
            template()
    assert e.value.actual == "t_1/v:0"
    assert [note for note in e.value.__notes__ if "in template 't'" in note and __file__ in note]
    with pytest.raises(DTypeError, match="function of template 't'"):
        af.make_template("t", "not a function")  # type: ignore[arg-type]  # the mistake
