"""Programs with templates, with the names that they make in TensorFlow 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple


class TemplateCase(NamedTuple):
    """A program, given the module, and its result."""

    program: Callable[[Any], Any]
    result: Any


def names(variables: Any) -> list[str]:
    return [v.name for v in variables]


def _scaled(x: Any = 1.0, *, m: Any, **settings: Any) -> Any:
    return m.multiply(x, m.get_variable("w", [], **settings), name="y")


def _refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except ValueError:
        return "ValueError"
    return "passes"


def _shared(m: Any) -> Any:
    template = m.make_template("t", _scaled, m=m)
    before = template.variable_scope, template.variable_scope_name, names(template.variables)
    made = [template(2.0).name, template(x=3.0).name]
    with m.name_scope("n"), m.variable_scope("v"):
        made.append(template().name)
    other = m.make_template("t", _scaled, m=m)
    other()
    return before, made, names(m.global_variables()), template.variable_scope_name, other.var_scope.name, template.name


def _scope_now(m: Any) -> Any:
    template, later = m.make_template("t", _scaled, True, m=m), m.make_template("t", _scaled, m=m)
    scope = template.variable_scope
    found = scope.name, scope.original_name_scope, names(template.variables)
    with m.variable_scope("outer"):
        made = [template().name, later().name, template().name]
    return found, made, names(m.global_variables())


def _inside_scope(m: Any) -> Any:
    with m.variable_scope("outer"):
        template = m.make_template("t", _scaled, create_scope_now_=True, m=m)
        with m.variable_scope("inner"):
            made = [template().name, template().name]
    return made, names(m.global_variables()), template.variable_scope_name, template.variable_scope.original_name_scope


def _unique_name(m: Any) -> Any:
    first = m.make_template("t", _scaled, unique_name_="own", m=m)
    second = m.make_template("t", _scaled, unique_name_="own", m=m)
    first()
    with m.variable_scope(m.get_variable_scope(), reuse=True):
        third = m.make_template("t", _scaled, unique_name_="own", m=m)
        third()
    return _refused(second), first.variable_scope_name, names(third.variables), names(m.global_variables())


def _nested(m: Any) -> Any:
    inner = m.make_template("inner", _scaled, m=m)

    def layer(x: float) -> Any:
        own = m.make_template("own", _scaled, m=m)
        return inner(x), own(x), own(x)

    outer = m.make_template("outer", layer)
    made = [[y.name for y in outer(1.0)] for _ in range(2)]
    return made, names(outer.variables), names(inner.variables), names(m.global_variables())


def _kinds(m: Any) -> Any:
    def body() -> None:
        m.get_variable("a", [1])
        m.get_variable("b", [1], trainable=False)
        m.get_variable("c", [1], trainable=False, collections=[m.GraphKeys.LOCAL_VARIABLES])

    template = m.make_template("t", body)
    m.get_variable("t1", [1])
    template()
    kinds = "variables trainable_variables non_trainable_variables global_variables local_variables weights"
    return {kind: names(getattr(template, kind)) for kind in kinds.split()}


def _new_variables(m: Any) -> Any:
    turns: list[int] = []

    def body() -> None:
        turns.append(0)
        m.get_variable(f"w{len(turns)}", [1])

    def plain(trainable: bool) -> Any:
        return m.Variable(1.0, trainable=trainable, name="v")

    found = []
    for function, arguments in ((body, {}), (plain, {"trainable": True}), (plain, {"trainable": False})):
        template = m.make_template("t", function, **arguments)
        found.append([_refused(template), _refused(template)])
    return found, names(m.trainable_variables())


def _first_call_fails(m: Any) -> Any:
    def body(fail: bool) -> Any:
        y = _scaled(m=m)
        if fail:
            raise ValueError("now")
        return y

    template = m.make_template("t", body)
    found = [_refused(lambda: template(True)), names(template.variables)]
    return found, _refused(lambda: template(False)), _refused(lambda: template(fail=False)), names(m.global_variables())


def _getter(m: Any) -> Any:
    def rename(getter: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        return m.identity(getter(name, *args, **kwargs), name="got")

    def body() -> Any:
        return m.get_variable("w", [1])

    template, now = (m.make_template("t", body, now, custom_getter_=rename) for now in (False, True))
    return [template().name, template().name, now().name], names(template.variables)


CASES: Final[dict[str, TemplateCase]] = {
    "calls share variables": TemplateCase(
        _shared,
        ((None, None, []), ["t/y:0", "t_1/y:0", "n/v/t/y:0"], ["t/w:0", "t_1/w:0"], "t/", "t_1", "t"),
    ),
    "the scope is created at once": TemplateCase(
        _scope_now,
        (("t", "t", []), ["outer/t/y:0", "outer/t_1/y:0", "outer/t_2/y:0"], ["t/w:0", "outer/t/w:0"]),
    ),
    "the scope is created at once in another scope": TemplateCase(
        _inside_scope, (["outer/inner/t/y:0", "outer/inner/t_1/y:0"], ["outer/t/w:0"], "outer/t/", "t")
    ),
    "the name is kept": TemplateCase(_unique_name, ("ValueError", "own/", ["own/w:0"], ["own/w:0"])),
    "templates are nested": TemplateCase(
        _nested,
        (
            [
                ["outer/inner/y:0", "outer/own/y:0", "outer/own_1/y:0"],
                ["outer_1/inner/y:0", "outer_1/own/y:0", "outer_1/own_1/y:0"],
            ],
            ["outer/inner/w:0", "outer/own/w:0"],
            ["outer/inner/w:0"],
            ["outer/inner/w:0", "outer/own/w:0"],
        ),
    ),
    "variables of each kind": TemplateCase(
        _kinds,
        {
            "variables": ["t/a:0", "t/b:0", "t/c:0"],
            "trainable_variables": ["t/a:0"],
            "non_trainable_variables": ["t/b:0"],
            "global_variables": ["t/a:0", "t/b:0"],
            "local_variables": ["t/c:0"],
            "weights": ["t/a:0", "t/b:0", "t/c:0"],
        },
    ),
    "a later call makes variables": TemplateCase(
        _new_variables,
        (
            [["passes", "ValueError"], ["passes", "ValueError"], ["passes", "passes"]],
            ["t/w1:0", "t_2/v:0", "t_1_1/v:0"],
        ),
    ),
    "the first call fails": TemplateCase(
        _first_call_fails, (["ValueError", []], "ValueError", "ValueError", ["t/w:0"])
    ),
    "a getter": TemplateCase(_getter, (["got:0", "got_1:0", "got_2:0"], ["t_1/w:0"])),
    "no name": TemplateCase(lambda m: _refused(lambda: m.make_template(None, _scaled)), "ValueError"),
}
