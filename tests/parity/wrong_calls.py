"""Wrong calls of the public interface other than op builders, as data: calls by the names of their mistakes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

WrongCall = Callable[[Any], Any]


class Thing:
    """A class that no library knows."""


THING = Thing()


# -- helpers of the calls ---------------------------------------------------------------------------------------------


def done(value: Any) -> Any:
    """Return the value, or the result of a coroutine."""
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def step(m: Any, fetches: Any, feeds: Any = None) -> Any:
    m.no_op()  # TensorFlow checks nothing else in an empty graph
    with m.Session() as session:
        return getattr(session, "run_sync", session.run)(fetches, feeds)


def fed(m: Any, name: str | None = None) -> Any:
    return m.placeholder("float32", [2], name=name)


def elsewhere(m: Any) -> Any:
    """Return a tensor of another graph."""
    with m.Graph().as_default():
        return m.placeholder("float32", [2], name="elsewhere")


def inside(block: Any, build: Callable[[], Any]) -> Any:
    with block:
        return build()


def variable(m: Any, name: str = "v", **options: Any) -> Any:
    return m.get_variable(name, [2], initializer=m.zeros_initializer(), use_resource=True, **options)


def in_a_loop(m: Any) -> Any:
    """Return a tensor of a loop's body."""
    kept = []

    def body(i: Any) -> Any:
        kept.append(i + 1)
        return kept[0]

    m.while_loop(lambda i: i < 3, body, [0])
    return kept[0]


def finalized(m: Any, build: Callable[[Any], Any]) -> Any:
    x = fed(m)
    m.get_default_graph().finalize()
    return build(x)


def closed(m: Any) -> Any:
    session = m.Session()
    done(session.close())
    return session


def running(m: Any, session: Any, *args: Any) -> Any:
    return getattr(session, "run_sync", session.run)(*args)


def partial(m: Any, fetches: Any, feeds: Any, ask: Callable[..., Any]) -> Any:
    """Set up a partial run, and call `ask` with the session and the handle."""
    m.no_op()
    session = m.Session()

    async def both() -> Any:
        async with session:
            return await ask(session, await session.partial_run_setup(fetches, feeds))

    if inspect.iscoroutinefunction(session.partial_run):
        return asyncio.run(both())
    return ask(session, session.partial_run_setup(fetches, feeds))


def loop(m: Any, condition: Any, body: Any, variables: Any, **options: Any) -> Any:
    return m.while_loop(condition, body, variables, **options)


def array(m: Any, **options: Any) -> Any:
    return m.TensorArray("float32", 3, **options)


def descent(m: Any) -> Any:
    return m.train.GradientDescentOptimizer(0.1)


def queue(m: Any, **options: Any) -> Any:
    return m.FIFOQueue(3, ["float32", "int32"], [[], []], **options)


def custom(m: Any) -> Any:
    return m.custom_gradient(lambda x: (x, 3))(fed(m))


def saved(m: Any, ask: Callable[[Any, Any], Any]) -> Any:
    variable(m)
    saver = m.train.Saver()
    with m.Session() as session:
        return done(ask(saver, session))


def sparse(m: Any) -> Any:
    return m.SparseTensor([[0, 0]], [1.0], [2, 2])


# -- the calls --------------------------------------------------------------------------------------------------------

FETCHES: dict[str, WrongCall] = {
    "nothing": lambda m: step(m, None),
    "a number": lambda m: step(m, 3),
    "a thing": lambda m: step(m, THING),
    "bytes": lambda m: step(m, b"x:0"),
    "an array": lambda m: step(m, np.zeros(2)),
    "a set": lambda m: step(m, {fed(m)}),
    "nothing in a list": lambda m: step(m, [None]),
    "a number in a dictionary": lambda m: step(m, {"a": 3}),
    "a thing in a tuple": lambda m: step(m, (m.constant(1), THING)),
    "a shape": lambda m: step(m, m.TensorShape([2])),
    "a dtype": lambda m: step(m, m.float32),
    "the graph": lambda m: step(m, m.get_default_graph()),
    "the name of no node": lambda m: step(m, "nobody"),
    "the name of no tensor": lambda m: step(m, "nobody:0"),
    "the name of no output": lambda m: step(m, fed(m).op.name + ":1"),
    "an empty name": lambda m: step(m, ""),
    "a name with two colons": lambda m: step(m, fed(m).name + ":0"),
    "a name without a number": lambda m: step(m, fed(m).op.name + ":"),
    "a name of a control input": lambda m: step(m, "^" + fed(m).op.name),
    "a tensor of another graph": lambda m: step(m, elsewhere(m)),
    "a node of another graph": lambda m: step(m, elsewhere(m).op),
    "a variable of another graph": lambda m: step(m, inside(m.Graph().as_default(), lambda: variable(m))),
    "what is in a loop": lambda m: step(m, in_a_loop(m)),
    "a queue": lambda m: step(m, queue(m)),
    "a tensor array": lambda m: step(m, array(m)),
    "a placeholder that is not fed": lambda m: step(m, fed(m)),
    "a variable without a value": lambda m: step(m, variable(m)),
}

FEEDS: dict[str, WrongCall] = {
    "no dictionary": lambda m: step(m, m.constant(1), 3),
    "a list": lambda m: step(m, m.constant(1), [1]),
    "text": lambda m: step(m, m.constant(1), "x"),
    "for nothing": lambda m: step(m, m.constant(1), {None: 1}),
    "for a number": lambda m: step(m, m.constant(1), {3: 1}),
    "for a thing": lambda m: step(m, m.constant(1), {THING: 1}),
    "for the name of no tensor": lambda m: step(m, m.constant(1), {"nobody:0": 1}),
    "for the name of a node": lambda m: step(m, m.constant(1), {fed(m).op.name: [1.0, 2.0]}),
    "for the name of no output": lambda m: step(m, m.constant(1), {fed(m).op.name + ":1": [1.0, 2.0]}),
    "for a node": lambda m: step(m, m.constant(1), {fed(m).op: [1.0, 2.0]}),
    "for a tensor of another graph": lambda m: step(m, m.constant(1), {elsewhere(m): [1.0, 2.0]}),
    "for what is in a loop": lambda m: step(m, m.constant(1), {in_a_loop(m): 1}),
    "for a sparse tensor, two parts": lambda m: step(m, m.constant(1), {m.sparse_placeholder("float32"): (1, 2)}),
    "for a sparse tensor, a number": lambda m: step(m, m.constant(1), {m.sparse_placeholder("float32"): 3}),
    "of another shape": lambda m: step(m, m.constant(1), {fed(m): [1.0]}),
    "of another rank": lambda m: step(m, m.constant(1), {fed(m): 1.0}),
    "ragged": lambda m: step(m, m.constant(1), {fed(m): [[1.0], [1.0, 2.0]]}),
    "nothing": lambda m: step(m, m.constant(1), {fed(m): None}),
    "a thing": lambda m: step(m, m.constant(1), {fed(m): THING}),
    "a dictionary": lambda m: step(m, m.constant(1), {fed(m): {}}),
    "text for numbers": lambda m: step(m, m.constant(1), {fed(m): ["a", "b"]}),
    "text for one number": lambda m: step(m, m.constant(1), {m.placeholder("float32", []): "a"}),
    "a tensor": lambda m: step(m, m.constant(1), {fed(m): m.constant([1.0, 2.0])}),
    "complex for floats": lambda m: step(m, m.constant(1), {fed(m): [1j, 2j]}),
    "too large an integer": lambda m: step(m, m.constant(1), {m.placeholder("int32", []): 2**40}),
    "far too large an integer": lambda m: step(m, m.constant(1), {m.placeholder("int32", []): 2**70}),
    "too large integers": lambda m: step(m, m.constant(1), {m.placeholder("int32", [1]): [2**40]}),
    "a negative one": lambda m: step(m, m.constant(1), {m.placeholder("uint8", []): -1}),
    "a float for an integer": lambda m: step(m, m.constant(1), {m.placeholder("int32", []): 1.5}),
}

SESSION: dict[str, WrongCall] = {
    "a graph that is none": lambda m: m.Session(graph=3),
    "a target that is none": lambda m: m.Session(3),
    "settings that are none": lambda m: m.Session(config=3),
    "run, closed": lambda m: running(m, closed(m), m.constant(1)),
    "partial_run_setup, closed": lambda m: done(closed(m).partial_run_setup([m.constant(1)], [])),
    "eval without a session": lambda m: done(m.constant(1).eval()),
    "run of a node without a session": lambda m: done(m.no_op().run()),
    "eval of a variable without a session": lambda m: done(variable(m).eval()),
    "load without a session": lambda m: done(variable(m).load([1.0, 2.0])),
    "eval with a session of another graph": lambda m: done(m.constant(1).eval(session=m.Session(graph=m.Graph()))),
    "run of a node with a session of another graph": lambda m: done(m.no_op().run(session=m.Session(graph=m.Graph()))),
    "make_callable of nothing": lambda m: m.Session().make_callable(None),
    "make_callable of a thing": lambda m: m.Session().make_callable(THING),
    "make_callable of the name of no node": lambda m: m.Session().make_callable("nobody"),
    "make_callable of another graph": lambda m: m.Session().make_callable(elsewhere(m)),
    "make_callable, fed with a thing": lambda m: m.Session().make_callable(m.constant(1), [THING]),
    "make_callable, fed with a name of none": lambda m: m.Session().make_callable(m.constant(1), ["nobody:0"]),
    "make_callable, a feed too few": lambda m: done(m.Session().make_callable(m.constant(1), [fed(m)])()),
    "make_callable, a feed too many": lambda m: done(m.Session().make_callable(m.constant(1))(3)),
    "make_callable, a feed of another shape": lambda m: done(m.Session().make_callable(m.constant(1), [fed(m)])([1.0])),
    "make_callable, no list": lambda m: m.Session().make_callable(m.constant(1), 3),
    "partial_run of no handle": lambda m: partial(
        m, [m.constant(1)], [fed(m)], lambda s, h: s.partial_run("nothing", m.constant(1))
    ),
    "partial_run of what was not set up": lambda m: partial(
        m, [m.constant(1)], [fed(m)], lambda s, h: s.partial_run(h, m.constant(2))
    ),
    "partial_run fed with what was not set up": lambda m: partial(
        m, [m.constant(1)], [fed(m)], lambda s, h: s.partial_run(h, m.constant(1), {fed(m): [1.0, 2.0]})
    ),
    "partial_run of nothing": lambda m: partial(m, [m.constant(1)], [fed(m)], lambda s, h: s.partial_run(h, None)),
    "partial_run of a thing": lambda m: partial(m, [m.constant(1)], [fed(m)], lambda s, h: s.partial_run(h, THING)),
    "partial_run fed for a thing": lambda m: partial(
        m, [m.constant(1)], [fed(m)], lambda s, h: s.partial_run(h, m.constant(1), {THING: 1})
    ),
    "partial_run_setup of nothing": lambda m: partial(m, None, [], lambda s, h: None),
    "partial_run_setup of a thing": lambda m: partial(m, [THING], [], lambda s, h: None),
    "partial_run_setup of another graph": lambda m: partial(m, [elsewhere(m)], [], lambda s, h: None),
    "partial_run_setup, fed with a thing": lambda m: partial(m, [m.constant(1)], [THING], lambda s, h: None),
    "target of no protocol": lambda m: m.Session("nonsense://here"),
}

GRAPH: dict[str, WrongCall] = {
    "get_operation_by_name, none": lambda m: m.get_default_graph().get_operation_by_name("nobody"),
    "get_operation_by_name of a tensor": lambda m: m.get_default_graph().get_operation_by_name(fed(m).name),
    "get_operation_by_name of a number": lambda m: m.get_default_graph().get_operation_by_name(3),
    "get_operation_by_name of nothing": lambda m: m.get_default_graph().get_operation_by_name(None),
    "get_operation_by_name of a node": lambda m: m.get_default_graph().get_operation_by_name(fed(m).op),
    "get_operation_by_name, empty": lambda m: m.get_default_graph().get_operation_by_name(""),
    "get_tensor_by_name, none": lambda m: m.get_default_graph().get_tensor_by_name("nobody:0"),
    "get_tensor_by_name, no output": lambda m: m.get_default_graph().get_tensor_by_name(fed(m).op.name + ":1"),
    "get_tensor_by_name of a node": lambda m: m.get_default_graph().get_tensor_by_name(fed(m).op.name),
    "get_tensor_by_name of no node": lambda m: m.get_default_graph().get_tensor_by_name("nobody"),
    "get_tensor_by_name, no number": lambda m: m.get_default_graph().get_tensor_by_name(fed(m).op.name + ":a"),
    "get_tensor_by_name, two colons": lambda m: m.get_default_graph().get_tensor_by_name(fed(m).name + ":0"),
    "get_tensor_by_name of a number": lambda m: m.get_default_graph().get_tensor_by_name(3),
    "get_tensor_by_name of a tensor": lambda m: m.get_default_graph().get_tensor_by_name(fed(m)),
    "as_graph_element of a thing": lambda m: m.get_default_graph().as_graph_element(THING),
    "as_graph_element of nothing": lambda m: m.get_default_graph().as_graph_element(None),
    "as_graph_element of a number": lambda m: m.get_default_graph().as_graph_element(3),
    "as_graph_element of no node": lambda m: m.get_default_graph().as_graph_element("nobody"),
    "as_graph_element of no tensor": lambda m: m.get_default_graph().as_graph_element("nobody:0"),
    "as_graph_element of no output": lambda m: m.get_default_graph().as_graph_element(fed(m).op.name + ":1"),
    "as_graph_element, no number": lambda m: m.get_default_graph().as_graph_element(fed(m).op.name + ":a"),
    "as_graph_element of another graph": lambda m: m.get_default_graph().as_graph_element(elsewhere(m)),
    "as_graph_element of a node of another graph": lambda m: m.get_default_graph().as_graph_element(elsewhere(m).op),
    "as_graph_element, a tensor for a node": lambda m: m.get_default_graph().as_graph_element(
        fed(m), allow_tensor=False
    ),
    "as_graph_element, a node for a tensor": lambda m: m.get_default_graph().as_graph_element(
        fed(m).op, allow_operation=False
    ),
    "as_graph_element, the name of a tensor for a node": lambda m: m.get_default_graph().as_graph_element(
        fed(m).name, allow_tensor=False
    ),
    "as_graph_element, the name of a node for a tensor": lambda m: m.get_default_graph().as_graph_element(
        fed(m).op.name, allow_operation=False
    ),
    "as_graph_element, neither": lambda m: m.get_default_graph().as_graph_element(
        fed(m), allow_tensor=False, allow_operation=False
    ),
    "a node, finalized": lambda m: finalized(m, lambda x: x + 1),
    "a constant, finalized": lambda m: finalized(m, lambda x: m.constant(1)),
    "a placeholder, finalized": lambda m: finalized(m, lambda x: fed(m)),
    "a variable, finalized": lambda m: finalized(m, lambda x: variable(m)),
    "a gradient, finalized": lambda m: finalized(m, lambda x: m.gradients(x, x)),
    "a saver, finalized": lambda m: finalized(m, lambda x: m.train.Saver([])),
    "a collection, finalized": lambda m: finalized(m, lambda x: m.add_to_collection("c", x)),
    "several collections, finalized": lambda m: finalized(m, lambda x: m.add_to_collections(["c"], x)),
    "a name scope that is no text": lambda m: inside(m.name_scope(3), lambda: m.constant(1)),
    "a name scope with a space": lambda m: inside(m.name_scope("a b"), lambda: m.constant(1)),
    "a name scope with an underscore": lambda m: inside(m.name_scope("_a"), lambda: m.constant(1)),
    "a name scope of the graph that is no text": lambda m: inside(
        m.get_default_graph().name_scope(3), lambda: m.constant(1)
    ),
    "a name scope of the graph that is a tensor": lambda m: inside(
        m.get_default_graph().name_scope(fed(m)), lambda: m.constant(1)
    ),
    "a device that is a number": lambda m: inside(m.device(3), lambda: m.constant(1)),
    "a device that is a thing": lambda m: inside(m.device(THING), lambda: m.constant(1)),
    "a device that is no name": lambda m: inside(m.device("nonsense"), lambda: m.constant(1)),
    "a device with another part": lambda m: inside(m.device("/nonsense:0"), lambda: m.constant(1)),
    "a device whose number is none": lambda m: inside(m.device("/cpu:a"), lambda: m.constant(1)),
    "a device of a function that raises": lambda m: inside(m.device(lambda op: op.nothing), lambda: m.constant(1)),
    "a device of a function, a number": lambda m: inside(m.device(lambda op: 3), lambda: m.constant(1)),
    "control_dependencies of a number": lambda m: inside(m.control_dependencies(3), lambda: m.constant(1)),
    "control_dependencies of numbers": lambda m: inside(m.control_dependencies([3]), lambda: m.constant(1)),
    "control_dependencies of things": lambda m: inside(m.control_dependencies([THING]), lambda: m.constant(1)),
    "control_dependencies of nothing": lambda m: inside(m.control_dependencies([None]), lambda: m.constant(1)),
    "control_dependencies of no node": lambda m: inside(m.control_dependencies(["nobody"]), lambda: m.constant(1)),
    "control_dependencies of a tensor": lambda m: inside(m.control_dependencies(fed(m)), lambda: m.constant(1)),
    "control_dependencies of another graph": lambda m: inside(
        m.control_dependencies([elsewhere(m)]), lambda: m.constant(1)
    ),
    "colocate_with a thing": lambda m: inside(m.colocate_with(THING), lambda: m.constant(1)),
    "container that is no text": lambda m: inside(m.container(3), lambda: variable(m)),
    "gradient_override_map of a list": lambda m: inside(
        m.get_default_graph().gradient_override_map([1]), lambda: m.constant(1)
    ),
    "gradient_override_map of numbers": lambda m: inside(
        m.get_default_graph().gradient_override_map({1: "Square"}), lambda: m.constant(1)
    ),
    "gradient_override_map to numbers": lambda m: inside(
        m.get_default_graph().gradient_override_map({"Square": 1}), lambda: m.square(fed(m))
    ),
    "a name with a space": lambda m: m.constant(1, name="a b"),
    "a name with an underscore": lambda m: m.constant(1, name="_a"),
    "a name that is a number": lambda m: m.placeholder("float32", name=3),
    "unique_name of a number": lambda m: m.get_default_graph().unique_name(3),
    "set_shape to another": lambda m: fed(m).set_shape([3]),
    "set_shape to another rank": lambda m: fed(m).set_shape([2, 2]),
    "set_shape to text": lambda m: fed(m).set_shape("ab"),
    "set_shape to a thing": lambda m: fed(m).set_shape(THING),
    "a tensor as a bool": lambda m: bool(fed(m)),
    "a tensor as an int": lambda m: int(fed(m)),
    "a tensor as a float": lambda m: float(fed(m)),
    "a tensor as an index": lambda m: [1, 2, 3][m.constant(1)],
    "a tensor as an array": lambda m: np.asarray(fed(m)),
    "len of a tensor": lambda m: len(fed(m)),
    "the elements of a tensor": lambda m: list(m.placeholder("float32")),
    "the elements of a scalar": lambda m: list(m.constant(1)),
    "an attribute of a tensor": lambda m: fed(m).nothing,
    "an attribute of a node": lambda m: fed(m).op.get_attr("nothing"),
    "an item by text": lambda m: fed(m)["a"],
    "an item by a thing": lambda m: fed(m)[THING],
    "an item by a float": lambda m: fed(m)[1.5],
    "an item too many": lambda m: fed(m)[0, 0],
    "an item out of range": lambda m: fed(m)[2],
    "an item by two ellipses": lambda m: fed(m)[..., ...],
    "an item by floats": lambda m: fed(m)[0.5:1.5],
    "an item by step zero": lambda m: fed(m)[::0],
    "an item by a tensor of floats": lambda m: fed(m)[m.constant(1.0)],
    "an item is set": lambda m: fed(m).__setitem__(0, 1.0),
    "collections of a list": lambda m: m.get_collection(["a"]),
    "add_to_collections of a number": lambda m: m.add_to_collections(3, 1),
    "import_graph_def of a number": lambda m: m.import_graph_def(3),
    "import_graph_def of nothing": lambda m: m.import_graph_def(None),
    "import_graph_def of text": lambda m: m.import_graph_def("text"),
    "import_graph_def with a list": lambda m: m.import_graph_def(m.Graph().as_graph_def(), input_map=[1]),
    "import_graph_def with an unused key": lambda m: m.import_graph_def(
        m.Graph().as_graph_def(), input_map={"nobody:0": fed(m)}
    ),
    "import_graph_def with a key that is a number": lambda m: m.import_graph_def(
        m.Graph().as_graph_def(), input_map={3: fed(m)}
    ),
    "import_graph_def with a thing": lambda m: m.import_graph_def(
        elsewhere(m).graph.as_graph_def(), input_map={"elsewhere:0": THING}
    ),
    "import_graph_def with another dtype": lambda m: m.import_graph_def(
        inside(m.Graph().as_default(), lambda: (m.square(fed(m, "a")), m.get_default_graph().as_graph_def())[1]),
        input_map={"a:0": m.constant(1)},
    ),
    "import_graph_def of no element": lambda m: m.import_graph_def(
        m.Graph().as_graph_def(), return_elements=["nobody"]
    ),
    "import_graph_def of no tensor": lambda m: m.import_graph_def(
        m.Graph().as_graph_def(), return_elements=["nobody:0"]
    ),
    "import_graph_def of no output": lambda m: m.import_graph_def(
        elsewhere(m).graph.as_graph_def(), return_elements=["elsewhere:1"]
    ),
    "import_graph_def of a number as element": lambda m: m.import_graph_def(
        m.Graph().as_graph_def(), return_elements=[3]
    ),
    "import_graph_def of elements that are no list": lambda m: m.import_graph_def(
        m.Graph().as_graph_def(), return_elements=3
    ),
    "import_graph_def with a name that is none": lambda m: m.import_graph_def(
        elsewhere(m).graph.as_graph_def(), name="a b"
    ),
    "import_graph_def with a name that is a number": lambda m: m.import_graph_def(
        elsewhere(m).graph.as_graph_def(), name=3
    ),
    "reset_default_graph in a graph": lambda m: m.reset_default_graph(),
    "a gradient registered twice": lambda m: [m.RegisterGradient("TwiceHere")(len) for _ in range(2)],
    "a gradient registered for a number": lambda m: m.RegisterGradient(3),
    "no gradient for a number": lambda m: m.no_gradient(3),
    "a conversion for no type": lambda m: m.register_tensor_conversion_function(3, lambda v, **k: None),
    "a conversion that is none": lambda m: m.register_tensor_conversion_function(Thing, 3),
}

VALUES: dict[str, WrongCall] = {
    "convert nothing": lambda m: m.convert_to_tensor(None),
    "convert a thing": lambda m: m.convert_to_tensor(THING),
    "convert a dictionary": lambda m: m.convert_to_tensor({"a": 1}),
    "convert a ragged list": lambda m: m.convert_to_tensor([[1], [2, 3]]),
    "convert a ragged list of strings": lambda m: m.convert_to_tensor([["a"], ["b", "c"]]),
    "convert a ragged list of another depth": lambda m: m.convert_to_tensor([1, [2]]),
    "convert a mixed list": lambda m: m.convert_to_tensor([1, "a"]),
    "convert bools and text": lambda m: m.convert_to_tensor([True, "a"]),
    "convert text and numbers": lambda m: m.convert_to_tensor(["a", 1]),
    "convert nothing in a list": lambda m: m.convert_to_tensor([None, 1]),
    "convert a float to int": lambda m: m.convert_to_tensor(1.5, "int32"),
    "convert floats to int": lambda m: m.convert_to_tensor([1, 2.5], "int32"),
    "convert an array of floats to int": lambda m: m.convert_to_tensor(np.zeros(2), "int32"),
    "convert text to a number": lambda m: m.convert_to_tensor("a", "float32"),
    "convert texts to numbers": lambda m: m.convert_to_tensor(["a"], "float32"),
    "convert a number to text": lambda m: m.convert_to_tensor(1, "string"),
    "convert a number to bool": lambda m: m.convert_to_tensor(1, "bool"),
    "convert a bool to a number": lambda m: m.convert_to_tensor(True, "float32"),
    "convert complex to float": lambda m: m.convert_to_tensor(1j, "float32"),
    "convert ragged to a dtype": lambda m: m.convert_to_tensor([[1], [2, 3]], "int32"),
    "convert too large an integer": lambda m: m.convert_to_tensor(2**40, "int32"),
    "convert far too large an integer": lambda m: m.convert_to_tensor(2**70),
    "convert far too large integers": lambda m: m.convert_to_tensor([2**70]),
    "convert a negative to unsigned": lambda m: m.convert_to_tensor(-1, "uint8"),
    "convert 300 to uint8": lambda m: m.convert_to_tensor(300, "uint8"),
    "convert a tensor to another dtype": lambda m: m.convert_to_tensor(fed(m), "int32"),
    "convert tensors of two dtypes": lambda m: m.convert_to_tensor([fed(m), m.constant([1, 2])]),
    "convert tensors of two shapes": lambda m: m.convert_to_tensor([fed(m), m.constant(1.0)]),
    "convert tensors of two graphs": lambda m: m.convert_to_tensor([fed(m), elsewhere(m)]),
    "convert a tensor and text": lambda m: m.convert_to_tensor([fed(m), "a"]),
    "convert a tensor and nothing": lambda m: m.convert_to_tensor([fed(m), None]),
    "convert a node": lambda m: m.convert_to_tensor(m.no_op()),
    "convert a sparse tensor": lambda m: m.convert_to_tensor(sparse(m)),
    "convert an open shape": lambda m: m.convert_to_tensor(m.TensorShape([None, 2])),
    "convert an unknown shape": lambda m: m.convert_to_tensor(m.TensorShape(None)),
    "convert a shape to floats": lambda m: m.convert_to_tensor(m.TensorShape([2]), "float32"),
    "convert an unknown dimension": lambda m: m.convert_to_tensor(m.Dimension(None)),
    "convert a dtype": lambda m: m.convert_to_tensor(m.float32),
    "convert to no dtype": lambda m: m.convert_to_tensor(1, "nonsense"),
    "convert to a thing": lambda m: m.convert_to_tensor(1, THING),
    "convert to resource": lambda m: m.convert_to_tensor(1, m.resource),
    "convert a set": lambda m: m.convert_to_tensor({1, 2}),
    "convert a generator": lambda m: m.convert_to_tensor(i for i in range(2)),
    "convert a function": lambda m: m.convert_to_tensor(len),
    "convert a slice": lambda m: m.convert_to_tensor(slice(1)),
    "convert things in an array": lambda m: m.convert_to_tensor(np.array([THING, 1], dtype=object)),
    "convert slices without a shape": lambda m: m.convert_to_tensor(m.IndexedSlices(fed(m), m.constant([0, 1]))),
    "convert slices to another dtype": lambda m: m.convert_to_tensor(
        m.IndexedSlices(fed(m), m.constant([0, 1]), m.constant([3])), "int32"
    ),
    "constant of a tensor": lambda m: m.constant(fed(m)),
    "constant of nothing": lambda m: m.constant(None),
    "constant of a thing": lambda m: m.constant(THING),
    "constant, too many values": lambda m: m.constant([1, 2, 3], shape=[2]),
    "constant, no value": lambda m: m.constant([], shape=[2]),
    "constant, open shape": lambda m: m.constant(1, shape=[None]),
    "constant, unknown shape": lambda m: m.constant(1, shape=m.TensorShape(None)),
    "constant, negative shape": lambda m: m.constant(1, shape=[-1]),
    "constant, shape of text": lambda m: m.constant(1, shape="a"),
    "constant, shape of a float": lambda m: m.constant(1, shape=[1.5]),
    "constant, shape a tensor": lambda m: m.constant(1, shape=m.constant([2])),
    "constant, verified": lambda m: m.constant([1], shape=[2], verify_shape=True),
    "as_dtype of no name": lambda m: m.as_dtype("nonsense"),
    "as_dtype of a number": lambda m: m.as_dtype(1000),
    "as_dtype of nothing": lambda m: m.as_dtype(None),
    "as_dtype of a thing": lambda m: m.as_dtype(THING),
    "as_dtype of a list": lambda m: m.as_dtype([1]),
    "as_dtype of a class": lambda m: m.as_dtype(Thing),
    "as_dtype of a record": lambda m: m.as_dtype(np.dtype([("a", "f4")])),
    "as_dtype of a date": lambda m: m.as_dtype(np.dtype("datetime64[D]")),
    "smallest string": lambda m: m.string.min,
    "largest complex": lambda m: m.complex64.max,
    "limits of a string": lambda m: m.string.limits,
    "TensorShape of text": lambda m: m.TensorShape("ab"),
    "TensorShape of a thing": lambda m: m.TensorShape(THING),
    "TensorShape of things": lambda m: m.TensorShape([THING]),
    "TensorShape of floats": lambda m: m.TensorShape([1.5]),
    "TensorShape of -1": lambda m: m.TensorShape([-1]),
    "TensorShape of -2": lambda m: m.TensorShape([-2]),
    "TensorShape of a tensor": lambda m: m.TensorShape(fed(m)),
    "TensorShape of tensors": lambda m: m.TensorShape([fed(m)]),
    "TensorShape of a dictionary": lambda m: m.TensorShape({"a": 1}),
    "TensorShape, merged": lambda m: m.TensorShape([2]).merge_with([3]),
    "TensorShape, merged with another rank": lambda m: m.TensorShape([2]).merge_with([2, 2]),
    "TensorShape, merged with text": lambda m: m.TensorShape([2]).merge_with("ab"),
    "TensorShape, of a rank": lambda m: m.TensorShape([2]).with_rank(2),
    "TensorShape, of at least a rank": lambda m: m.TensorShape([2]).with_rank_at_least(2),
    "TensorShape, of at most a rank": lambda m: m.TensorShape([2]).with_rank_at_most(0),
    "TensorShape, its rank asserted": lambda m: m.TensorShape([2]).assert_has_rank(2),
    "TensorShape, the same rank asserted": lambda m: m.TensorShape([2]).assert_same_rank([2, 2]),
    "TensorShape, asserted": lambda m: m.TensorShape([2]).assert_is_compatible_with([3]),
    "TensorShape, asserted to be known": lambda m: m.TensorShape([None]).assert_is_fully_defined(),
    "TensorShape, unknown, as a list": lambda m: m.TensorShape(None).as_list(),
    "TensorShape, unknown, its length": lambda m: len(m.TensorShape(None)),
    "TensorShape, unknown, its elements": lambda m: list(m.TensorShape(None)),
    "TensorShape, unknown, a slice": lambda m: m.TensorShape(None)[1:-1],
    "TensorShape, a dimension too many": lambda m: m.TensorShape([2])[1],
    "TensorShape, a dimension by text": lambda m: m.TensorShape([2])["a"],
    "TensorShape and text": lambda m: m.TensorShape([2]) + "ab",
    "TensorShape and a thing": lambda m: m.TensorShape([2]).concatenate(THING),
    "Dimension of text": lambda m: m.Dimension("a"),
    "Dimension of a float": lambda m: m.Dimension(1.5),
    "Dimension of -1": lambda m: m.Dimension(-1),
    "Dimension of a thing": lambda m: m.Dimension(THING),
    "Dimension, merged": lambda m: m.Dimension(2).merge_with(3),
    "Dimension, asserted": lambda m: m.Dimension(2).assert_is_compatible_with(3),
    "Dimension, unknown, as an int": lambda m: int(m.Dimension(None)),
    "Dimension, unknown, as an index": lambda m: [1, 2][m.Dimension(None)],
    "Dimension and text": lambda m: m.Dimension(2) + "a",
    "Dimension by zero": lambda m: m.Dimension(2) // 0,
    "Dimension, divided": lambda m: m.Dimension(2) / 2,
    "SparseTensor of nothing": lambda m: m.SparseTensor(None, [1.0], [2]),
    "SparseTensor, indices of floats": lambda m: m.SparseTensor([[0.5]], [1.0], [2]),
    "SparseTensor, indices of a wrong rank": lambda m: m.SparseTensor([0], [1.0], [2]),
    "SparseTensor, indices of another count": lambda m: m.SparseTensor([[0], [1]], [1.0], [2]),
    "SparseTensor, a shape of another rank": lambda m: m.SparseTensor([[0]], [1.0], [2, 2]),
    "SparseTensor, values of a wrong rank": lambda m: m.SparseTensor([[0]], [[1.0]], [2]),
    "SparseTensor, a shape of text": lambda m: m.SparseTensor([[0]], [1.0], ["a"]),
    "SparseTensor, int32 indices": lambda m: m.SparseTensor(m.constant([[0]]), [1.0], [2]),
    "SparseTensor of two graphs": lambda m: m.SparseTensor([[0], [1]], elsewhere(m), m.placeholder("int64", [1])),
    "SparseTensor from a number": lambda m: m.SparseTensor.from_value(3),
    "SparseTensor plus text": lambda m: sparse(m) + "a",
    "SparseTensor times a thing": lambda m: sparse(m) * THING,
    "SparseTensor divided by text": lambda m: sparse(m) / "a",
    "sparse_add of numbers": lambda m: m.sparse_add(1, 2),
    "sparse_add of dense tensors": lambda m: m.sparse_add(fed(m), fed(m)),
    "sparse_reorder of a tensor": lambda m: m.sparse_reorder(fed(m)),
    "sparse_tensor_to_dense of a tensor": lambda m: m.sparse_tensor_to_dense(fed(m)),
    "sparse_concat of a tensor": lambda m: m.sparse_concat(0, [fed(m)]),
    "concat in the old order": lambda m: m.concat(0, [fed(m), fed(m)]),
    "concat of one along text": lambda m: m.concat([fed(m)], "a"),
    "concat of one along a list": lambda m: m.concat([fed(m)], [0]),
    "concat of two along a list": lambda m: m.concat([fed(m), fed(m)], [0]),
    "sparse_concat of nothing": lambda m: m.sparse_concat(0, []),
    "sparse_placeholder of no dtype": lambda m: m.sparse_placeholder("nonsense"),
    "sparse_retain of a list": lambda m: m.sparse_retain([1], [True]),
    "IndexedSlices of a list, its dtype": lambda m: m.IndexedSlices([1.0], [0]).dtype,
    "IndexedSlices of two graphs": lambda m: m.IndexedSlices(fed(m), elsewhere(m)),
    "IndexedSlices negated as text": lambda m: m.IndexedSlices(fed(m), m.constant([0, 1])) + "a",
    "placeholder of no dtype": lambda m: m.placeholder("nonsense"),
    "placeholder of nothing": lambda m: m.placeholder(None),
    "placeholder of a thing": lambda m: m.placeholder(THING),
    "placeholder of a shape of text": lambda m: m.placeholder("float32", "ab"),
    "placeholder of a negative shape": lambda m: m.placeholder("float32", [-2]),
    "placeholder of a number": lambda m: m.placeholder("float32", 2.5),
    "placeholder_with_default of nothing": lambda m: m.placeholder_with_default(None, []),
    "placeholder_with_default of another shape": lambda m: m.placeholder_with_default([1.0], [2]),
    "a sum with text": lambda m: fed(m) + "a",
    "a sum with a thing": lambda m: fed(m) + THING,
    "a sum with nothing": lambda m: fed(m) + None,
    "a sum with a dictionary": lambda m: fed(m) + {},
    "a sum of two shapes": lambda m: fed(m) + m.ones([3]),
    "a sum of two dtypes": lambda m: fed(m) + m.constant([1, 2]),
    "a sum of two graphs": lambda m: fed(m) + elsewhere(m),
    "text times a tensor": lambda m: "a" * fed(m),
    "a thing minus a tensor": lambda m: THING - fed(m),
    "a product of a wrong rank": lambda m: fed(m) @ fed(m),
    "a comparison with text": lambda m: fed(m) < "a",
    "a negated string": lambda m: -m.constant("a"),
    "an inverted float": lambda m: ~fed(m),
    "abs of a string": lambda m: abs(m.constant("a")),
    "and of floats": lambda m: fed(m) & fed(m),
    "device of no name": lambda m: m.DeviceSpec.from_string("nonsense"),
    "device with a job that is a number": lambda m: m.DeviceSpec(job=3).to_string(),
}

CONTROL_FLOW: dict[str, WrongCall] = {
    "group of nothing": lambda m: m.group(None),
    "group of numbers": lambda m: m.group(3),
    "group of things": lambda m: m.group(THING),
    "group of text": lambda m: m.group("a"),
    "group of another graph": lambda m: m.group(fed(m), elsewhere(m)),
    "tuple of nothing": lambda m: m.tuple([]),
    "tuple of None": lambda m: m.tuple([None]),
    "tuple of a thing": lambda m: m.tuple([THING]),
    "tuple of a number": lambda m: m.tuple(3),
    "tuple waits for a number": lambda m: m.tuple([fed(m)], control_inputs=[3]),
    "tuple waits for no list": lambda m: m.tuple([fed(m)], control_inputs=3),
    "with_dependencies of numbers": lambda m: m.group(m.no_op(), 3),
    "cond without functions": lambda m: m.cond(m.constant(True)),
    "cond of a bool": lambda m: m.cond(True, lambda: 1, lambda: 2),
    "cond of a number": lambda m: m.cond(1, lambda: m.constant(1), lambda: m.constant(2)),
    "cond of floats": lambda m: m.cond(m.constant(1.0), lambda: m.constant(1), lambda: m.constant(2)),
    "cond of a vector": lambda m: m.cond(m.constant([True]), lambda: m.constant(1), lambda: m.constant(2)),
    "cond of text": lambda m: m.cond("a", lambda: m.constant(1), lambda: m.constant(2)),
    "cond of nothing": lambda m: m.cond(None, lambda: m.constant(1), lambda: m.constant(2)),
    "cond of values": lambda m: m.cond(m.constant(True), 1, 2),
    "cond of one value": lambda m: m.cond(m.constant(True), lambda: m.constant(1), 2),
    "cond of two dtypes": lambda m: m.cond(m.constant(True), lambda: m.constant(1), lambda: m.constant(2.0)),
    "cond of two lengths": lambda m: m.cond(m.constant(True), lambda: [m.constant(1)], lambda: [m.constant(1)] * 2),
    "cond of two structures": lambda m: m.cond(
        m.constant(True), lambda: {"a": m.constant(1)}, lambda: {"b": m.constant(1)}
    ),
    "cond of one None": lambda m: m.cond(m.constant(True), lambda: m.constant(1), lambda: None),
    "cond of things": lambda m: m.cond(m.constant(True), lambda: THING, lambda: THING),
    "cond with functions of an argument": lambda m: m.cond(m.constant(True), lambda x: x, lambda x: x),
    "cond with two names of one": lambda m: m.cond(m.constant(True), lambda: 1, lambda: 2, fn1=lambda: 1),
    "cond of another graph": lambda m: m.cond(m.constant(True), lambda: elsewhere(m), lambda: elsewhere(m)),
    "case of nothing": lambda m: m.case(None),
    "case of no pairs": lambda m: m.case([]),
    "case of numbers": lambda m: m.case([1, 2]),
    "case of triples": lambda m: m.case([(m.constant(True), lambda: 1, 2)]),
    "case of a condition that is a number": lambda m: m.case([(1, lambda: m.constant(1))]),
    "case of an integer tensor": lambda m: m.case([(m.constant(1), lambda: m.constant(1))]),
    "case of values": lambda m: m.case([(m.constant(True), 3)]),
    "case with a default that is a value": lambda m: m.case([(m.constant(True), lambda: m.constant(1))], default=3),
    "case of two dtypes": lambda m: m.case(
        [(m.constant(True), lambda: m.constant(1))], default=lambda: m.constant(1.0)
    ),
    "switch_case of floats": lambda m: m.switch_case(m.constant(1.0), [lambda: m.constant(1)]),
    "switch_case of a number": lambda m: m.switch_case(1.5, [lambda: m.constant(1)]),
    "switch_case of nothing": lambda m: m.switch_case(m.constant(1), []),
    "switch_case of values": lambda m: m.switch_case(m.constant(1), [3]),
    "switch_case of no list": lambda m: m.switch_case(m.constant(1), 3),
    "switch_case of pairs with text": lambda m: m.switch_case(m.constant(1), [("a", lambda: m.constant(1))]),
    "switch_case with a number twice": lambda m: m.switch_case(m.constant(1), [(0, lambda: 1), (0, lambda: 2)]),
    "while_loop without variables": lambda m: loop(m, lambda: True, lambda: None, []),
    "while_loop of nothing": lambda m: loop(m, lambda i: i < 3, lambda i: i + 1, None),
    "while_loop of a condition that is none": lambda m: loop(m, True, lambda i: i + 1, [0]),
    "while_loop of a body that is none": lambda m: loop(m, lambda i: i < 3, 3, [0]),
    "while_loop with a condition of numbers": lambda m: loop(m, lambda i: i, lambda i: i + 1, [0]),
    "while_loop with a condition of a vector": lambda m: loop(m, lambda i: [i < 3, i < 4], lambda i: i + 1, [0]),
    "while_loop with a condition of nothing": lambda m: loop(m, lambda i: None, lambda i: i + 1, [0]),
    "while_loop with a condition of text": lambda m: loop(m, lambda i: "a", lambda i: i + 1, [0]),
    "while_loop with one result too many": lambda m: loop(m, lambda i: i < 3, lambda i: (i, i), [0]),
    "while_loop with one result too few": lambda m: loop(m, lambda i, j: i < 3, lambda i, j: i + 1, [0, 0]),
    "while_loop with a result of nothing": lambda m: loop(m, lambda i: i < 3, lambda i: None, [0]),
    "while_loop with a result of a thing": lambda m: loop(m, lambda i: i < 3, lambda i: THING, [0]),
    "while_loop to another dtype": lambda m: loop(m, lambda i: i < 3, lambda i: m.cast(i, "float32"), [0]),
    "while_loop to another shape": lambda m: loop(m, lambda i, x: i < 3, lambda i, x: (i + 1, [x, x]), [0, 1.0]),
    "while_loop to another rank": lambda m: loop(
        m, lambda i, x: i < 3, lambda i, x: (i + 1, m.expand_dims(x, 0)), [0, m.ones([2])]
    ),
    "while_loop of another argument": lambda m: loop(m, lambda i: i < 3, lambda i, j: i + 1, [0]),
    "while_loop of a thing": lambda m: loop(m, lambda i: i < 3, lambda i: i, [THING]),
    "while_loop of another graph": lambda m: loop(m, lambda i: m.constant(True), lambda i: i, [elsewhere(m)]),
    "while_loop, parallel 0": lambda m: loop(m, lambda i: i < 3, lambda i: i + 1, [0], parallel_iterations=0),
    "while_loop, parallel text": lambda m: loop(m, lambda i: i < 3, lambda i: i + 1, [0], parallel_iterations="a"),
    "while_loop, invariants of another count": lambda m: loop(
        m, lambda i: i < 3, lambda i: i + 1, [0], shape_invariants=[m.TensorShape([]), m.TensorShape([])]
    ),
    "while_loop, an invariant of another shape": lambda m: loop(
        m, lambda i: m.constant(True), lambda i: i, [m.ones([2])], shape_invariants=[m.TensorShape([3])]
    ),
    "while_loop, an invariant of a number": lambda m: loop(
        m, lambda i: i < 3, lambda i: i + 1, [0], shape_invariants=[3]
    ),
    "while_loop, maximum of text": lambda m: loop(m, lambda i: i < 3, lambda i: i + 1, [0], maximum_iterations="a"),
    "while_loop, maximum of a vector": lambda m: loop(
        m, lambda i: i < 3, lambda i: i + 1, [0], maximum_iterations=[1, 2]
    ),
    "what is in a loop, outside": lambda m: in_a_loop(m) + 1,
    "map_fn of a value": lambda m: m.map_fn(3, fed(m)),
    "map_fn of nothing": lambda m: m.map_fn(lambda x: x, None),
    "map_fn of a scalar": lambda m: m.map_fn(lambda x: x, m.constant(1.0)),
    "map_fn to another dtype": lambda m: m.map_fn(lambda x: m.cast(x, "int32"), fed(m)),
    "map_fn to another structure": lambda m: m.map_fn(lambda x: (x, x), fed(m), dtype="float32"),
    "map_fn of two lengths": lambda m: m.map_fn(lambda x: x[0], (fed(m), m.ones([3])), dtype="float32"),
    "foldl of a value": lambda m: m.foldl(3, fed(m)),
    "foldr of a function of one": lambda m: m.foldr(lambda a: a, fed(m)),
    "scan of a value": lambda m: m.scan(3, fed(m)),
    "scan to another structure": lambda m: m.scan(lambda a, x: (a, x), fed(m)),
    "py_func of a value": lambda m: m.py_func(3, [fed(m)], "float32"),
    "py_func to no dtype": lambda m: m.py_func(len, [fed(m)], "nonsense"),
    "py_func of a thing": lambda m: m.py_func(len, [THING], "float32"),
    "py_func of no list": lambda m: m.py_func(len, 3, "float32"),
    "Assert of nothing": lambda m: m.Assert(None, [fed(m)]),
    "Assert of text": lambda m: m.Assert(m.constant(True), "a"),
    "Assert of what is false": lambda m: m.Assert(False, ["a"]),
    "custom_gradient of a number": lambda m: m.gradients(custom(m), []),
    "TensorArray of no dtype": lambda m: m.TensorArray("nonsense", 3),
    "TensorArray of a size that is text": lambda m: m.TensorArray("float32", "a"),
    "TensorArray of a size of floats": lambda m: m.TensorArray("float32", 1.5),
    "TensorArray of a size of a vector": lambda m: m.TensorArray("float32", [1, 2]),
    "TensorArray without a size": lambda m: m.TensorArray("float32", handle=3),
    "TensorArray of a name and a handle": lambda m: m.TensorArray(
        "float32", tensor_array_name="a", handle=array(m).handle
    ),
    "TensorArray of a handle and a size": lambda m: m.TensorArray("float32", 3, handle=array(m).handle),
    "TensorArray of an element shape that is none": lambda m: array(m, element_shape="a"),
    "TensorArray, write of another dtype": lambda m: array(m).write(0, m.constant(1)),
    "TensorArray, write of text": lambda m: array(m).write(0, "a"),
    "TensorArray, write of nothing": lambda m: array(m).write(0, None),
    "TensorArray, write at text": lambda m: array(m).write("a", 1.0),
    "TensorArray, write of another shape": lambda m: array(m, element_shape=[2]).write(0, [1.0]),
    "TensorArray, write of two shapes": lambda m: array(m).write(0, [1.0]).write(1, [1.0, 2.0]),
    "TensorArray, read at a float": lambda m: array(m).read(1.5),
    "TensorArray, unstack of another dtype": lambda m: array(m).unstack(m.constant([1, 2])),
    "TensorArray, unstack of a scalar": lambda m: array(m).unstack(1.0),
    "TensorArray, scatter at floats": lambda m: array(m).scatter([0.5], [1.0]),
    "TensorArray, scatter of another dtype": lambda m: array(m).scatter([0], m.constant([1])),
    "TensorArray, scatter of another count": lambda m: array(m).scatter([0, 1], [1.0]),
    "TensorArray, split by text": lambda m: array(m).split([1.0, 2.0], ["a"]),
    "TensorArray, split of another dtype": lambda m: array(m).split(m.constant([1, 2]), [1, 1]),
    "TensorArray, gather at floats": lambda m: array(m).gather([0.5]),
    "TensorArray, grad of nothing": lambda m: array(m).grad(None),
    "TensorArray in another graph": lambda m: inside(m.Graph().as_default(), lambda: array(m)).write(0, elsewhere(m)),
}

VARIABLES: dict[str, WrongCall] = {
    "Variable of nothing": lambda m: m.Variable(None),
    "Variable without an argument": lambda m: m.Variable(),
    "Variable of a thing": lambda m: m.Variable(THING),
    "Variable of another dtype": lambda m: m.Variable("a", dtype="float32"),
    "Variable of no dtype": lambda m: m.Variable(1.0, dtype="nonsense"),
    "Variable of no name": lambda m: m.Variable(1.0, name="a b"),
    "Variable of a name that is a number": lambda m: m.Variable(1.0, name=3),
    "Variable of a tensor of unknown shape": lambda m: m.Variable(m.placeholder("float32"), use_resource=False),
    "Variable of a function without dtype": lambda m: m.Variable(lambda: m.constant(1.0), use_resource=False),
    "Variable in collections of text": lambda m: m.Variable(1.0, collections="abc"),
    "Variable in collections of a number": lambda m: m.Variable(1.0, collections=3),
    "Variable with another shape": lambda m: m.Variable([1.0, 2.0], expected_shape=[3]),
    "Variable of a tensor in a loop": lambda m: m.Variable(in_a_loop(m)),
    "Variable of another graph": lambda m: m.Variable(elsewhere(m)),
    "Variable with a constraint that is none": lambda m: m.Variable(1.0, constraint=3),
    "assign of another shape": lambda m: variable(m).assign([1.0]),
    "assign of text": lambda m: variable(m).assign(["a", "b"]),
    "assign of nothing": lambda m: variable(m).assign(None),
    "assign of another dtype": lambda m: variable(m).assign(m.constant([1, 2])),
    "assign of another graph": lambda m: variable(m).assign(elsewhere(m)),
    "assign_add of another shape": lambda m: variable(m).assign_add([1.0, 2.0, 3.0]),
    "assign_add of text": lambda m: variable(m).assign_add("a"),
    "assign_sub of nothing": lambda m: variable(m).assign_sub(None),
    "m.assign to a tensor": lambda m: m.assign(fed(m), [1.0, 2.0]),
    "m.assign to a number": lambda m: m.assign(3, [1.0, 2.0]),
    "m.assign_add to a tensor": lambda m: m.assign_add(fed(m), [1.0, 2.0]),
    "m.scatter_add to a tensor": lambda m: m.scatter_add(fed(m), [0], [1.0]),
    "scatter_update at floats": lambda m: m.scatter_update(variable(m), [0.5], [1.0]),
    "scatter_update of another shape": lambda m: m.scatter_update(variable(m), [0], [[1.0]]),
    "scatter_sub of dense rows": lambda m: variable(m).scatter_sub([1.0]),
    "scatter_nd_add of another rank": lambda m: m.scatter_nd_add(variable(m), [[0, 0]], [1.0]),
    "count_up_to of floats": lambda m: variable(m).count_up_to(3),
    "a variable as a bool": lambda m: bool(variable(m)),
    "a variable, its elements": lambda m: list(variable(m)),
    "a variable plus text": lambda m: variable(m) + "a",
    "a variable set by an item": lambda m: variable(m).__setitem__(0, 1.0),
    "a variable, an attribute": lambda m: variable(m).nothing,
    "variables_initializer of numbers": lambda m: m.variables_initializer([3]),
    "variables_initializer of a number": lambda m: m.variables_initializer(3),
    "variables_initializer of tensors": lambda m: m.variables_initializer([fed(m)]),
    "is_variable_initialized of a tensor": lambda m: m.is_variable_initialized(fed(m)),
    "report_uninitialized_variables of numbers": lambda m: m.report_uninitialized_variables([3]),
    "get_variable twice": lambda m: [variable(m) for _ in range(2)],
    "get_variable of no name": lambda m: m.get_variable("a b", [2]),
    "get_variable of nothing": lambda m: m.get_variable(None, [2]),
    "get_variable of an empty name": lambda m: m.get_variable("", [2]),
    "get_variable of a number": lambda m: m.get_variable(3, [2]),
    "get_variable without a shape": lambda m: m.get_variable("v"),
    "get_variable of an open shape": lambda m: m.get_variable("v", [None]),
    "get_variable of a negative shape": lambda m: m.get_variable("v", [-2]),
    "get_variable of text as shape": lambda m: m.get_variable("v", "ab"),
    "get_variable of a thing as shape": lambda m: m.get_variable("v", THING),
    "get_variable of a float as shape": lambda m: m.get_variable("v", [1.5]),
    "get_variable of no dtype": lambda m: m.get_variable("v", [2], "nonsense"),
    "get_variable of strings without an initializer": lambda m: m.get_variable("v", [2], "string"),
    "get_variable with a shape and a constant": lambda m: m.get_variable("v", [2], initializer=m.constant([1.0, 2.0])),
    "get_variable with a shape and a list": lambda m: m.get_variable("v", [2], initializer=[1.0, 2.0]),
    "get_variable with an initializer of text": lambda m: m.get_variable("v", [2], initializer="a"),
    "get_variable with an initializer that is a thing": lambda m: m.get_variable("v", [2], initializer=THING),
    "get_variable with an initializer of another dtype": lambda m: m.get_variable(
        "v", dtype="int32", initializer=m.constant(1.0)
    ),
    "get_variable with an initializer of another shape": lambda m: m.get_variable(
        "v", [2], initializer=lambda shape, **k: m.zeros([3])
    ),
    "get_variable with an initializer of nothing": lambda m: m.get_variable(
        "v", [2], initializer=lambda shape, **k: None
    ),
    "get_variable with a regularizer that is none": lambda m: m.get_variable("v", [2], regularizer=3),
    "get_variable again, of another shape": lambda m: (
        variable(m),
        inside(m.variable_scope("", reuse=True), lambda: m.get_variable("v", [3])),
    ),
    "get_variable again, of another dtype": lambda m: (
        variable(m),
        inside(m.variable_scope("", reuse=True), lambda: m.get_variable("v", [2], "int32")),
    ),
    "get_variable again, of none": lambda m: inside(
        m.variable_scope("s", reuse=True), lambda: m.get_variable("v", [2])
    ),
    "get_variable, trainable text": lambda m: m.get_variable(
        "v", [2], trainable="a", initializer=m.zeros_initializer()
    ),
    "get_variable, collections a number": lambda m: m.get_variable("v", [2], collections=3),
    "get_variable, a partitioner that is none": lambda m: m.get_variable("v", [2], partitioner=3),
    "variable_scope of nothing": lambda m: inside(m.variable_scope(None), lambda: variable(m)),
    "variable_scope of a number": lambda m: inside(m.variable_scope(3), lambda: variable(m)),
    "variable_scope of a thing": lambda m: inside(m.variable_scope(THING), lambda: variable(m)),
    "variable_scope with a space": lambda m: inside(m.variable_scope("a b"), lambda: variable(m)),
    "variable_scope with a default that is a number": lambda m: inside(
        m.variable_scope(None, default_name=3), lambda: variable(m)
    ),
    "variable_scope reused by default": lambda m: inside(
        m.variable_scope(None, default_name="d", reuse=True), lambda: variable(m)
    ),
    "variable_scope reused as text": lambda m: inside(m.variable_scope("s", reuse="yes"), lambda: variable(m)),
    "variable_scope with values of two graphs": lambda m: inside(
        m.variable_scope("s", values=[fed(m), elsewhere(m)]), lambda: variable(m)
    ),
    "variable_scope with no dtype": lambda m: inside(m.variable_scope("s", dtype="nonsense"), lambda: variable(m)),
    "variable_op_scope": lambda m: inside(m.variable_op_scope(3, "s"), lambda: variable(m)),
    "Saver of nothing": lambda m: m.train.Saver(),
    "Saver of a number": lambda m: m.train.Saver(3),
    "Saver of numbers": lambda m: m.train.Saver([3]),
    "Saver of a dictionary of numbers": lambda m: m.train.Saver({"a": 3}),
    "Saver of things": lambda m: m.train.Saver([THING]),
    "Saver of a tensor": lambda m: m.train.Saver([fed(m)]),
    "Saver of names that are numbers": lambda m: m.train.Saver({3: variable(m)}),
    "Saver of a variable twice": lambda m: m.train.Saver([variable(m)] * 2),
    "Saver that keeps text": lambda m: m.train.Saver([variable(m)], max_to_keep="a"),
    "Saver built twice": lambda m: m.train.Saver([variable(m)], defer_build=True),
    "save without a session": lambda m: saved(m, lambda saver, session: saver.save(None, "/tmp/nowhere")),
    "save with a number as session": lambda m: saved(m, lambda saver, session: saver.save(3, "/tmp/nowhere")),
    "save to a number": lambda m: saved(m, lambda saver, session: saver.save(session, 3)),
    "save to nothing": lambda m: saved(m, lambda saver, session: saver.save(session, None)),
    "save to a step that is text": lambda m: saved(
        m, lambda saver, session: saver.save(session, "/tmp/nowhere", global_step="a")
    ),
    "save to a list of files": lambda m: saved(
        m, lambda saver, session: saver.save(session, "/tmp/nowhere", latest_filename="a/b")
    ),
    "save of what has no value": lambda m: saved(m, lambda saver, session: saver.save(session, "/tmp/nowhere")),
    "restore of nothing": lambda m: saved(m, lambda saver, session: saver.restore(session, None)),
    "restore of a number": lambda m: saved(m, lambda saver, session: saver.restore(session, 3)),
    "restore of what is not there": lambda m: saved(
        m, lambda saver, session: saver.restore(session, "/tmp/is/not/there")
    ),
    "restore of an empty name": lambda m: saved(m, lambda saver, session: saver.restore(session, "")),
    "restore without a session": lambda m: saved(m, lambda saver, session: saver.restore(None, "/tmp/is/not/there")),
    "latest_checkpoint of a number": lambda m: m.train.latest_checkpoint(3),
    "list_variables of what is not there": lambda m: m.train.list_variables("/tmp/is/not/there"),
    "load_variable of what is not there": lambda m: m.train.load_variable("/tmp/is/not/there", "a"),
    "set_last_checkpoints of text": lambda m: m.train.Saver([variable(m)]).set_last_checkpoints("a"),
}

TRAINING: dict[str, WrongCall] = {
    "gradients of a number": lambda m: m.gradients(3, fed(m)),
    "gradients by a number": lambda m: m.gradients(fed(m), 3),
    "gradients of nothing": lambda m: m.gradients(None, fed(m)),
    "gradients by nothing": lambda m: m.gradients(fed(m), None),
    "gradients of a node": lambda m: m.gradients(fed(m).op, fed(m)),
    "gradients of text": lambda m: m.gradients(fed(m), "a"),
    "gradients of integers": lambda m: m.gradients(m.constant(1) * 2, m.constant(1)),
    "gradients of strings": lambda m: m.gradients(m.constant("a"), fed(m)),
    "gradients of another graph": lambda m: m.gradients(elsewhere(m), fed(m)),
    "gradients with grads of another count": lambda m: m.gradients(fed(m), fed(m), [1.0, 2.0]),
    "gradients with grads of another dtype": lambda m: m.gradients(fed(m), fed(m), [m.constant([1, 2])]),
    "gradients with grads of another shape": lambda m: m.gradients(*(lambda x: (x * 2, x))(fed(m)), [m.ones([3])]),
    "gradients with grads of text": lambda m: m.gradients(fed(m), fed(m), ["a"]),
    "gradients with a number for grads": lambda m: m.gradients(fed(m), fed(m), 3),
    "gradients with an aggregation that is none": lambda m: m.gradients(
        *(lambda x: (x * x, x))(fed(m)), aggregation_method=33
    ),
    "hessians of a vector": lambda m: m.hessians(*(lambda x: (x * x, x))(m.ones([2, 2]))),
    "hessians of what does not depend": lambda m: m.hessians(m.constant(1.0), fed(m)),
    "minimize of a number": lambda m: descent(m).minimize(3),
    "minimize without variables": lambda m: descent(m).minimize(m.constant(1.0)),
    "minimize of what does not depend": lambda m: (variable(m), descent(m).minimize(m.constant(1.0))),
    "minimize of integers": lambda m: (variable(m), descent(m).minimize(m.constant(1))),
    "minimize of nothing": lambda m: (variable(m), descent(m).minimize(None)),
    "minimize of a function": lambda m: (variable(m), descent(m).minimize(THING)),
    "minimize by tensors": lambda m: descent(m).minimize(m.constant(1.0), var_list=[fed(m)]),
    "minimize by a number": lambda m: descent(m).minimize(m.constant(1.0), var_list=3),
    "minimize by nothing": lambda m: descent(m).minimize(m.constant(1.0), var_list=[]),
    "minimize with a step that is a number": lambda m: (
        lambda v: descent(m).minimize(m.reduce_sum(v * v), global_step=3)
    )(variable(m)),
    "minimize with a step of floats": lambda m: (
        lambda v: descent(m).minimize(m.reduce_sum(v * v), global_step=m.Variable([1.0]))
    )(variable(m)),
    "minimize with a gate that is none": lambda m: (
        lambda v: descent(m).minimize(m.reduce_sum(v * v), gate_gradients=7)
    )(variable(m)),
    "compute_gradients with a gate that is none": lambda m: (
        lambda v: descent(m).compute_gradients(m.reduce_sum(v * v), gate_gradients="a")
    )(variable(m)),
    "apply_gradients of nothing": lambda m: descent(m).apply_gradients([]),
    "apply_gradients of None": lambda m: descent(m).apply_gradients([(None, variable(m))]),
    "apply_gradients of a number": lambda m: descent(m).apply_gradients(3),
    "apply_gradients of text": lambda m: descent(m).apply_gradients([("a", variable(m))]),
    "apply_gradients of a thing": lambda m: descent(m).apply_gradients([(THING, variable(m))]),
    "apply_gradients of single values": lambda m: descent(m).apply_gradients([1, 2]),
    "apply_gradients of another dtype": lambda m: descent(m).apply_gradients([(m.constant([1, 2]), variable(m))]),
    "apply_gradients of another shape": lambda m: descent(m).apply_gradients([(m.ones([3]), variable(m))]),
    "apply_gradients to a tensor": lambda m: descent(m).apply_gradients([(fed(m), fed(m))]),
    "apply_gradients to a number": lambda m: descent(m).apply_gradients([(fed(m), 3)]),
    "apply_gradients to nothing": lambda m: descent(m).apply_gradients([(fed(m), None)]),
    "an optimizer of text": lambda m: m.train.GradientDescentOptimizer("a").apply_gradients([(fed(m), variable(m))]),
    "an optimizer of nothing": lambda m: m.train.GradientDescentOptimizer(None).apply_gradients(
        [(fed(m), variable(m))]
    ),
    "an optimizer without a name": lambda m: m.train.GradientDescentOptimizer(0.1, name=""),
    "an optimizer without a rate": lambda m: m.train.GradientDescentOptimizer(),
    "variables of an optimizer": lambda m: m.train.Optimizer(False, "").variables(),
    "Ftrl of a positive power": lambda m: m.train.FtrlOptimizer(0.1, learning_rate_power=1.0),
    "Ftrl of a negative accumulator": lambda m: m.train.FtrlOptimizer(0.1, initial_accumulator_value=-1.0),
    "Ftrl of a negative strength": lambda m: m.train.FtrlOptimizer(0.1, l1_regularization_strength=-1.0),
    "Adagrad of a zero": lambda m: m.train.AdagradOptimizer(0.1, initial_accumulator_value=0.0),
    "averages of nothing": lambda m: m.train.ExponentialMovingAverage(0.9).apply([]),
    "averages of numbers": lambda m: m.train.ExponentialMovingAverage(0.9).apply([3]),
    "averages of integers": lambda m: m.train.ExponentialMovingAverage(0.9).apply([m.Variable(1)]),
    "averages applied twice": lambda m: [
        (lambda e, v: (e.apply([v]), e.apply([v])))(m.train.ExponentialMovingAverage(0.9), variable(m))
    ],
    "averages of text": lambda m: m.train.ExponentialMovingAverage("a").apply([variable(m)]),
    "global_step twice": lambda m: [m.train.create_global_step() for _ in range(2)],
    "global_step of a float": lambda m: m.train.assert_global_step(m.Variable(1.0)),
    "global_step of a vector": lambda m: m.train.assert_global_step(m.Variable([1])),
    "global_step of a number": lambda m: m.train.assert_global_step(3),
    "global_step of no session": lambda m: done(m.train.global_step(None, m.train.create_global_step())),
    "global_step in a graph that is none": lambda m: m.train.create_global_step(3),
    "exponential_decay of nothing": lambda m: m.train.exponential_decay(0.1, None, 10, 0.9),
    "exponential_decay of text": lambda m: m.train.exponential_decay(0.1, "a", 10, 0.9),
    "polynomial_decay of nothing": lambda m: m.train.polynomial_decay(0.1, None, 10),
    "cosine_decay of nothing": lambda m: m.train.cosine_decay(0.1, None, 10),
    "piecewise_constant of two lengths": lambda m: m.train.piecewise_constant(m.constant(1), [1, 2], [0.1]),
    "piecewise_constant of two dtypes": lambda m: m.train.piecewise_constant(m.constant(1), [1.5], [0.1, 0.2]),
    "piecewise_constant of values of two dtypes": lambda m: m.train.piecewise_constant(
        m.constant(1), [1], [m.constant(1), m.constant(0.1)]
    ),
    "a loss of two shapes": lambda m: m.losses.mean_squared_error(fed(m), m.ones([3])),
    "a loss of nothing": lambda m: m.losses.mean_squared_error(None, fed(m)),
    "a loss with a reduction that is none": lambda m: m.losses.mean_squared_error(fed(m), fed(m), reduction="a"),
    "a loss with weights of another shape": lambda m: m.losses.mean_squared_error(fed(m), fed(m), weights=m.ones([3])),
    "a loss with weights of nothing": lambda m: m.losses.mean_squared_error(fed(m), fed(m), weights=None),
    "a loss of text": lambda m: m.losses.absolute_difference(m.constant("a"), m.constant("b")),
    "a cosine without an axis": lambda m: m.losses.cosine_distance(fed(m), fed(m)),
    "a softmax loss of nothing": lambda m: m.losses.softmax_cross_entropy(None, fed(m)),
    "a sparse softmax loss of floats": lambda m: m.losses.sparse_softmax_cross_entropy(fed(m), m.ones([2, 3])),
    "a sparse softmax of two ranks": lambda m: m.nn.sparse_softmax_cross_entropy_with_logits(
        labels=m.constant([[1]]), logits=m.ones([2, 3])
    ),
    "a softmax by position": lambda m: m.nn.softmax_cross_entropy_with_logits(fed(m), fed(m)),
    "a sigmoid by position": lambda m: m.nn.sigmoid_cross_entropy_with_logits(fed(m), fed(m)),
    "a sigmoid of two shapes": lambda m: m.nn.sigmoid_cross_entropy_with_logits(labels=fed(m), logits=m.ones([3])),
    "a sigmoid of nothing": lambda m: m.nn.sigmoid_cross_entropy_with_logits(labels=None, logits=fed(m)),
    "dropout without a rate": lambda m: m.nn.dropout(fed(m)),
    "dropout of 2": lambda m: m.nn.dropout(fed(m), rate=2.0),
    "dropout of integers": lambda m: m.nn.dropout(m.constant([1, 2]), rate=0.5),
    "an embedding of nothing": lambda m: m.nn.embedding_lookup(None, [0]),
    "an embedding of none": lambda m: m.nn.embedding_lookup([], [0]),
    "an embedding with a strategy that is none": lambda m: m.nn.embedding_lookup(
        [variable(m), variable(m, "w")], [0], partition_strategy="a"
    ),
    "a sum of losses of nothing": lambda m: m.losses.add_loss(None),
    "a total loss of text": lambda m: (m.losses.add_loss("a"), m.losses.get_total_loss()),
    "a regularization loss in a scope of a number": lambda m: m.losses.get_losses(3),
}

PIPELINES: dict[str, WrongCall] = {
    "FIFOQueue of no dtype": lambda m: m.FIFOQueue(3, ["nonsense"]),
    "FIFOQueue of text": lambda m: m.FIFOQueue("a", ["float32"]),
    "FIFOQueue of a number for dtypes": lambda m: m.FIFOQueue(3, 3.5),
    "FIFOQueue with shapes of another count": lambda m: m.FIFOQueue(3, ["float32"], [[], []]),
    "FIFOQueue with a shape of text": lambda m: m.FIFOQueue(3, ["float32"], ["a"]),
    "FIFOQueue with names of another count": lambda m: m.FIFOQueue(3, ["float32"], names=["a", "b"]),
    "FIFOQueue with a name that is a number": lambda m: m.FIFOQueue(3, ["float32"], names=[3]),
    "FIFOQueue with an open shape": lambda m: m.FIFOQueue(3, ["float32"], [[None]]),
    "PaddingFIFOQueue without shapes": lambda m: m.PaddingFIFOQueue(3, ["float32"], None),
    "PaddingFIFOQueue with shapes of another count": lambda m: m.PaddingFIFOQueue(3, ["float32"], [[], []]),
    "RandomShuffleQueue with a minimum of text": lambda m: m.RandomShuffleQueue(3, "a", ["float32"], [[]]),
    "PriorityQueue of nothing": lambda m: m.PriorityQueue(3, None),
    "enqueue of one too few": lambda m: queue(m).enqueue([1.0]),
    "enqueue of one too many": lambda m: queue(m).enqueue([1.0, 1, 1]),
    "enqueue of another dtype": lambda m: queue(m).enqueue([m.constant(1), 1]),
    "enqueue of text": lambda m: queue(m).enqueue(["a", 1]),
    "enqueue of nothing": lambda m: queue(m).enqueue(None),
    "enqueue of a number": lambda m: queue(m).enqueue(3),
    "enqueue of another shape": lambda m: queue(m).enqueue([[1.0, 2.0], 1]),
    "enqueue of a dictionary": lambda m: queue(m).enqueue({"a": 1}),
    "enqueue of a list with names": lambda m: queue(m, names=["a", "b"]).enqueue([1.0, 1]),
    "enqueue of other names": lambda m: queue(m, names=["a", "b"]).enqueue({"a": 1.0, "c": 1}),
    "enqueue_many of scalars": lambda m: queue(m).enqueue_many([1.0, 1]),
    "enqueue_many of two lengths": lambda m: queue(m).enqueue_many([[1.0, 2.0], [1]]),
    "dequeue_many of text": lambda m: queue(m).dequeue_many("a"),
    "dequeue_many of a float": lambda m: queue(m).dequeue_many(1.5),
    "dequeue_many of nothing": lambda m: queue(m).dequeue_many(None),
    "dequeue_many of -1": lambda m: queue(m).dequeue_many(-1),
    "dequeue_many without shapes": lambda m: m.FIFOQueue(3, ["float32"]).dequeue_many(2),
    "dequeue_up_to of text": lambda m: queue(m).dequeue_up_to("a"),
    "close with text": lambda m: queue(m).close(cancel_pending_enqueues="a"),
    "from_list of nothing": lambda m: m.QueueBase.from_list(0, []),
    "from_list of numbers": lambda m: m.QueueBase.from_list(0, [1, 2]),
    "from_list of a number": lambda m: m.QueueBase.from_list(0, 3),
    "from_list of different queues": lambda m: m.QueueBase.from_list(0, [queue(m), m.FIFOQueue(3, ["float32"])]),
    "from_list at text": lambda m: m.QueueBase.from_list("a", [queue(m)]),
    "accumulator of text": lambda m: m.ConditionalAccumulator("string"),
    "accumulator of no dtype": lambda m: m.ConditionalAccumulator("nonsense"),
    "accumulator, a gradient of another dtype": lambda m: m.ConditionalAccumulator("float32", [2]).apply_grad(
        m.constant([1, 2])
    ),
    "accumulator, a gradient of another shape": lambda m: m.ConditionalAccumulator("float32", [2]).apply_grad([1.0]),
    "accumulator, a gradient of text": lambda m: m.ConditionalAccumulator("float32").apply_grad("a"),
    "accumulator, taken for text": lambda m: m.ConditionalAccumulator("float32").take_grad("a"),
    "accumulator, a reduction that is none": lambda m: m.ConditionalAccumulator("float32", reduction_type="a"),
    "sparse accumulator, a gradient of text": lambda m: m.SparseConditionalAccumulator("float32").apply_grad("a", "b"),
    "reader of text": lambda m: m.TextLineReader("a"),
    "reader of a number": lambda m: m.TextLineReader().read(3),
    "reader of nothing": lambda m: m.TextLineReader().read(None),
    "reader of a tensor": lambda m: m.TextLineReader().read(fed(m)),
    "reader of a queue of numbers": lambda m: m.TextLineReader().read(m.FIFOQueue(3, ["float32"])),
    "reader up to text": lambda m: m.TextLineReader().read_up_to(m.FIFOQueue(3, ["string"]), "a"),
    "reader restored from a number": lambda m: m.IdentityReader().restore_state(3),
    "reader without a size": lambda m: m.FixedLengthRecordReader(None),
    "reader of a size of text": lambda m: m.FixedLengthRecordReader("a"),
    "string_input_producer of nothing": lambda m: m.train.string_input_producer([]),
    "string_input_producer of numbers": lambda m: m.train.string_input_producer([3]),
    "string_input_producer of None": lambda m: m.train.string_input_producer(None),
    "string_input_producer of epochs of text": lambda m: m.train.string_input_producer(["a"], num_epochs="a"),
    "string_input_producer of -1 epochs": lambda m: m.train.string_input_producer(["a"], num_epochs=-1),
    "input_producer of a scalar": lambda m: m.train.input_producer(m.constant(1.0)),
    "input_producer of unknown shape": lambda m: m.train.input_producer(m.placeholder("float32")),
    "input_producer of another element": lambda m: m.train.input_producer(fed(m), element_shape=[3]),
    "range_input_producer of text": lambda m: m.train.range_input_producer("a"),
    "range_input_producer of 1.5": lambda m: m.train.range_input_producer(1.5),
    "slice_input_producer of nothing": lambda m: m.train.slice_input_producer([]),
    "slice_input_producer of None": lambda m: m.train.slice_input_producer(None),
    "slice_input_producer of two lengths": lambda m: m.train.slice_input_producer([[1, 2], [1]]),
    "limit_epochs of 0": lambda m: m.train.limit_epochs(fed(m), 0),
    "limit_epochs of text": lambda m: m.train.limit_epochs(fed(m), "a"),
    "batch of nothing": lambda m: m.train.batch([], 2),
    "batch of None": lambda m: m.train.batch(None, 2),
    "batch of unknown shape": lambda m: m.train.batch([m.placeholder("float32")], 2),
    "batch of scalars as many": lambda m: m.train.batch([m.constant(1.0)], 2, enqueue_many=True),
    "batch of text": lambda m: m.train.batch([fed(m)], "a"),
    "batch of -1": lambda m: m.train.batch([fed(m)], -1),
    "batch of shapes of another count": lambda m: m.train.batch([fed(m)], 2, shapes=[[2], [2]]),
    "batch of a thing": lambda m: m.train.batch([THING], 2),
    "batch with threads of text": lambda m: m.train.batch([fed(m)], 2, num_threads="a"),
    "batch_join of nothing": lambda m: m.train.batch_join([], 2),
    "batch_join of None": lambda m: m.train.batch_join(None, 2),
    "batch_join of a number": lambda m: m.train.batch_join(3, 2),
    "batch_join of two lengths": lambda m: m.train.batch_join([[fed(m)], [fed(m), fed(m)]], 2),
    "batch_join of two dtypes": lambda m: m.train.batch_join([[fed(m)], [m.constant([1, 2])]], 2),
    "batch_join of different keys": lambda m: m.train.batch_join([{"a": fed(m)}, {"b": fed(m)}], 2),
    "shuffle_batch with a minimum above": lambda m: m.train.shuffle_batch([fed(m)], 2, 5, 10),
    "shuffle_batch of nothing": lambda m: m.train.shuffle_batch([], 2, 10, 5),
    "maybe_batch with a vector": lambda m: m.train.maybe_batch([fed(m)], [True, False], 2),
    "QueueRunner of nothing": lambda m: m.train.QueueRunner(None, []),
    "QueueRunner without nodes": lambda m: m.train.QueueRunner(queue(m), []),
    "QueueRunner with exceptions that are none": lambda m: m.train.QueueRunner(
        queue(m), [m.no_op()], queue_closed_exception_types=3
    ),
    "QueueRunner with a list of exceptions": lambda m: m.train.QueueRunner(
        queue(m), [m.no_op()], queue_closed_exception_types=[ValueError]
    ),
    "add_queue_runner of a number": lambda m: (m.train.add_queue_runner(3), m.train.start_queue_runners(m.Session())),
    "start_queue_runners without a session": lambda m: m.train.start_queue_runners(),
    "start_queue_runners of a number": lambda m: m.train.start_queue_runners(3),
    "a cluster of a number": lambda m: m.train.ClusterSpec(3),
    "a cluster of text": lambda m: m.train.ClusterSpec("a"),
    "a cluster of numbers": lambda m: m.train.ClusterSpec({"w": 3}),
    "a cluster of a list of numbers": lambda m: m.train.ClusterSpec({"w": [3]}),
    "a cluster with an index of text": lambda m: m.train.ClusterSpec({"w": {"a": "b:1"}}),
    "a cluster, no such job": lambda m: m.train.ClusterSpec({"w": ["a:1"]}).num_tasks("v"),
    "a cluster, no such job's tasks": lambda m: m.train.ClusterSpec({"w": ["a:1"]}).job_tasks("v"),
    "a cluster, no such task": lambda m: m.train.ClusterSpec({"w": ["a:1"]}).task_address("w", 3),
    "a cluster, a task of no job": lambda m: m.train.ClusterSpec({"w": ["a:1"]}).task_address("v", 0),
    "a server of a number": lambda m: m.train.Server(3),
    "a server of no job": lambda m: m.train.Server({"w": ["localhost:0"], "v": ["localhost:0"]}),
    "a server of no such job": lambda m: m.train.Server({"w": ["localhost:0"]}, job_name="v"),
    "a server of a job that is a number": lambda m: m.train.Server({"w": ["localhost:0"]}, job_name=3),
    "a setter of negative tasks": lambda m: m.train.replica_device_setter(ps_tasks=-1),
    "a setter of a cluster that is none": lambda m: m.train.replica_device_setter(cluster=3),
    "write_graph of a number": lambda m: m.train.write_graph(3, "/tmp", "a"),
    "parse_example of no features": lambda m: m.parse_example(["a"], {}),
    "parse_example of a number": lambda m: m.parse_example(["a"], {"x": 3}),
    "parse_example of a feature without dtype": lambda m: m.parse_example(["a"], {"x": m.FixedLenFeature([1], None)}),
    "parse_example of a feature without shape": lambda m: m.parse_example(
        ["a"], {"x": m.FixedLenFeature(None, m.float32)}
    ),
    "parse_example of nothing": lambda m: m.parse_example(None, {"x": m.VarLenFeature(m.float32)}),
    "parse_example of a default of another shape": lambda m: m.parse_example(
        ["a"], {"x": m.FixedLenFeature([2], m.float32, [1.0, 2.0, 3.0])}
    ),
    "parse_single_example of a vector": lambda m: m.parse_single_example(["a"], {"x": m.VarLenFeature(m.float32)}),
    "decode_csv without defaults": lambda m: m.decode_csv("a", []),
    "decode_csv of a number": lambda m: m.decode_csv("a", 3),
    "decode_raw of nothing": lambda m: m.decode_raw(None, "int32"),
    "decode_raw to strings": lambda m: m.decode_raw("a", "string"),
    "a coordinator of a number": lambda m: m.train.Coordinator(clean_stop_exception_types=3),
}

WRONG: dict[str, dict[str, WrongCall]] = {
    "fetch": FETCHES,
    "feed": FEEDS,
    "session": SESSION,
    "graph": GRAPH,
    "value": VALUES,
    "control flow": CONTROL_FLOW,
    "variables": VARIABLES,
    "training": TRAINING,
    "pipelines": PIPELINES,
}
