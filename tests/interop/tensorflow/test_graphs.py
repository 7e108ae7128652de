"""TensorFlow graphs in files: their inputs and outputs, reports of missing ops, and refusal of malformed graphs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors, interop, protos
from aioflow.graph.graphdef import GraphDef, NodeDef, TensorData
from aioflow.interop.unsupported import UnsupportedError
from aioflow.ops.function import copying
from aioflow.testing.evaluate import evaluate

CASES = 100_000
LIBRARY = """
library { function {
  signature { name: 'f' input_arg { name: 'x' type: DT_FLOAT } output_arg { name: 'y' type: DT_FLOAT } }
  node_def { name: 'n' op: 'f' input: 'x' } ret { key: 'y' value: 'n:y:0' } } }
"""


def dense() -> af.Graph:
    with af.Graph().as_default() as graph:
        x = af.placeholder(af.float32, [None, 3], name="x")
        w = af.constant(np.arange(6, dtype=np.float32).reshape(3, 2), name="w")
        h = af.nn.relu(af.matmul(x, w), name="h")
        af.identity(h, name="out")
        af.split(h, 2, axis=1, name="parts")
    return graph


@pytest.mark.parametrize("as_text", [True, False])
def test_model_inputs_are_placeholders_and_outputs_are_unread_tensors(tmp_path: Path, as_text: bool) -> None:
    path = af.train.write_graph(dense(), tmp_path, "dense.pb", as_text)
    model = interop.tensorflow.load_graph(path)
    assert list(model.inputs) == ["x"]
    assert list(model.outputs) == ["out", "parts", "parts:1"]
    (found,) = evaluate([model.outputs["out"]], {model.inputs["x"]: np.array([[1, 0, 2]], np.float32)})
    np.testing.assert_array_equal(found, [[8, 11]])


def test_load_graph_accepts_named_inputs_and_outputs() -> None:
    model = interop.tensorflow.load_graph(dense().as_graph_def(), inputs=["h"], outputs=["parts:1"])
    assert list(model.inputs) == ["h"]
    assert list(model.outputs) == ["parts:1"]
    with pytest.raises(errors.NotFoundError):
        interop.tensorflow.load_graph(dense().as_graph_def(), outputs=["none"])


def test_load_graph_clears_devices_by_default() -> None:
    definition = GraphDef((NodeDef("a", "NoOp", (), "/device:GPU:3"),))
    for clear, device in ((True, ""), (False, "/device:GPU:3")):
        graph = interop.tensorflow.load_graph(definition, clear_devices=clear).graph
        assert graph.get_operation_by_name("a").device == device


def test_import_accepts_bytes_text_messages_and_definitions() -> None:
    definition = dense().as_graph_def()
    data = definition.SerializeToString()
    for source in (data, definition.to_text().encode(), definition, protos.parse("GraphDef", data)):
        with af.Graph().as_default():
            found = interop.tensorflow.import_graph_def(source, name="", return_elements=["out:0"])
            assert found is not None
            assert found[0].name == "out:0"


def test_import_lists_every_unsupported_node_in_one_error() -> None:
    text = """
      node { name: 'a' op: 'NoSuchOp' } node { name: 'b' op: 'NoOp' } node { name: 'c' op: 'NoSuchOp' }
      node { name: 'd' op: 'Const' attr { key: 'dtype' value { type: DT_VARIANT } }
             attr { key: 'value' value { tensor { dtype: DT_VARIANT } } } }
      library { function { signature { name: 'f' } node_def { name: 'inner' op: 'Another' } } }
    """
    with pytest.raises(UnsupportedError) as raised:
        interop.tensorflow.import_graph_def(text.encode())
    assert {each.node for each in raised.value.unsupported} == {"a", "c", "d", "f/inner"}


def test_export_omits_saver_snapshots_and_keeps_the_rest() -> None:
    with af.Graph().as_default() as graph:
        v = af.Variable([1.0], name="v")
        af.Variable(v.initialized_value(), name="later")
        af.train.Saver()
    ops = {node.op for node in interop.tensorflow.export_graph_def(graph).nodes}
    assert not {op for op in ops if op.startswith("_")}
    assert {"SaveV2", "RestoreV2", "Merge"} <= ops


def text_of(*nodes: str, library: str = "") -> bytes:
    return "\n".join(f"node {{ {node} }}" for node in nodes).encode() + library.encode()


FLOAT = "attr { key: 'T' value { type: DT_FLOAT } }"
PLACEHOLDER = "name: 'p' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } }"
MALFORMED: dict[str, bytes] = {
    "a cycle": text_of(f"name: 'a' op: 'Neg' input: 'b' {FLOAT}", f"name: 'b' op: 'Neg' input: 'a' {FLOAT}"),
    "reads itself": text_of(f"name: 'a' op: 'Neg' input: 'a' {FLOAT}"),
    "an unknown input": text_of(f"name: 'a' op: 'Neg' input: 'none' {FLOAT}"),
    "an output that is not there": text_of(PLACEHOLDER, f"name: 'a' op: 'Neg' input: 'p:7' {FLOAT}"),
    "a control input first": text_of(PLACEHOLDER, f"name: 'a' op: 'Neg' input: '^p' input: 'p' {FLOAT}"),
    "too few inputs": text_of(f"name: 'a' op: 'Neg' {FLOAT}"),
    "a name twice": text_of(PLACEHOLDER, PLACEHOLDER),
    "a wrong dtype": text_of(PLACEHOLDER, "name: 'a' op: 'Neg' input: 'p' attr { key: 'T' value { type: DT_INT32 } }"),
    "an unknown dtype": text_of("name: 'a' op: 'Placeholder' attr { key: 'dtype' value { type: 99 } }"),
    "an attribute of another kind": text_of("name: 'a' op: 'Placeholder' attr { key: 'dtype' value { i: 1 } }"),
    "an attribute without a value": text_of("name: 'a' op: 'Placeholder' attr { key: 'dtype' value { } }"),
    "no attribute": text_of("name: 'a' op: 'Placeholder'"),
    "a negative size": text_of(PLACEHOLDER + "attr { key: 'shape' value { shape { dim { size: -5 } } } }"),
    "no name": text_of("op: 'NoOp'"),
    "a strange name": text_of("name: 'a b' op: 'NoOp'"),
    "a function that calls itself": text_of(PLACEHOLDER, "name: 'a' op: 'f' input: 'p'", library=LIBRARY),
    "a function twice": LIBRARY.encode() * 2,
    "references in a circle": text_of(
        f"name: 'a' op: 'Assign' input: 'b' input: 'p' {FLOAT}",
        f"name: 'b' op: 'Assign' input: 'a' input: 'p' {FLOAT}",
        PLACEHOLDER,
    ),
    "a variable without a dtype": text_of("name: 'v' op: 'VariableV2'"),
    "an assignment of nothing": text_of(f"name: 'a' op: 'Assign' {FLOAT}"),
    "a queue that is none": text_of(PLACEHOLDER, "name: 'q' op: 'QueueSize' input: 'p'"),
    "a stack of nothing": text_of("name: 's' op: 'Stack'"),
    "a save of nothing": text_of("name: 's' op: 'Save'"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_graph_raises_typed_error_and_adds_no_nodes(what: str) -> None:
    for load in (interop.tensorflow.import_graph_def, lambda data: af.import_graph_def(GraphDef.FromString(data))):
        with af.Graph().as_default() as graph:
            with pytest.raises(errors.OpError):
                load(MALFORMED[what])
            assert graph.get_operations() == []


def test_function_with_unknown_control_output_is_refused() -> None:
    ends = "} control_ret { key: 'c' value: 'c' } ret"
    library = LIBRARY.replace("op: 'f'", "op: 'Neg' " + FLOAT).replace("} ret", ends)
    with pytest.raises(errors.InvalidArgumentError, match="runs 'c', which it does not have"):
        interop.tensorflow.import_graph_def(text_of(PLACEHOLDER, "name: 'a' op: 'f' input: 'p'", library=library))


def test_import_of_a_deep_chain_does_not_recurse() -> None:
    variable = NodeDef("v", "VariableV2", (), "", {"dtype": af.float32, "shape": ()})
    value = NodeDef("c", "Const", (), "", {"dtype": af.float32, "value": TensorData.of(np.array(1.0, np.float32))})
    nodes, last = [variable, value], "v"
    for i in range(3000):
        nodes.append(NodeDef(f"a{i}", "AssignAdd", (last, "c"), "", {"T": af.float32}))
        last = f"a{i}"
    with af.Graph().as_default() as graph:
        af.import_graph_def(GraphDef(tuple(nodes)), name="")
        assert graph.get_operation_by_name("a2999").type == "ReadVariableOp"


def test_exponential_function_expansion_is_refused_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }"
    text += "node { name: 'y' op: 'f0' input: 'x' } library {"
    for i in range(41):
        calls = f"node_def {{ name: 'a' op: 'f{i + 1}' input: 'x' }}"
        calls += f"node_def {{ name: 'b' op: 'f{i + 1}' input: 'a:y:0' }}"
        negated = "node_def { name: 'b' op: 'Neg' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }"
        text += f"function {{ signature {{ name: 'f{i}' input_arg {{ name: 'x' type: DT_FLOAT }}"
        text += f" output_arg {{ name: 'y' type: DT_FLOAT }} }} {calls if i < 40 else negated}"
        text += " ret { key: 'y' value: 'b:y:0' } }"
    monkeypatch.setattr(copying, "_MOST_COPIED", 2000)
    with af.Graph().as_default() as graph:
        with pytest.raises(errors.ResourceExhaustedError, match="too large when they are all expanded"):
            interop.tensorflow.import_graph_def((text + "}").encode(), name="")
        assert graph.get_operations() == []


def test_many_reads_after_many_updates_add_few_edges() -> None:
    variable = NodeDef("v", "VariableV2", (), "", {"dtype": af.float32, "shape": ()})
    value = NodeDef("c", "Const", (), "", {"dtype": af.float32, "value": TensorData.of(np.array(1.0, np.float32))})
    count = 300
    updates = [NodeDef(f"a{i}", "AssignAdd", ("v", "c"), "", {"T": af.float32}) for i in range(count)]
    begun = NodeDef("begun", "Assign", ("v", "c"), "", {"T": af.float32})
    names = tuple(node.name for node in updates)
    total = NodeDef("total", "AddN", names, "", {"T": af.float32, "N": count})
    with af.Graph().as_default() as graph:
        af.import_graph_def(GraphDef((variable, value, begun, *updates, total)), name="")
        edges = sum(len(op.inputs) + len(op.control_inputs) for op in graph.get_operations())
        with af.Session() as session:
            session.run_sync("begun")
            assert session.run_sync("total:0") == count * (count + 1.0)  # each read follows all updates
    assert edges < 10 * count


def test_many_nodes_of_one_name_are_refused_quickly() -> None:
    many = [NodeDef("s", "Stack", (), "", {"elem_type": af.float32}) for _ in range(10_000)]
    taken = [NodeDef("s/max_size" + (f"_{i}" if i else ""), "NoOp") for i in range(10_000)]
    with pytest.raises(errors.InvalidArgumentError, match="two nodes"):
        af.import_graph_def(GraphDef((*taken, *many)))


# ── malformed input ──────────────────────────────────────────────────────────────────────────────────────────────────


def seeds() -> list[bytes]:
    with af.Graph().as_default() as graph:
        x = af.placeholder(af.float32, [None, 3], name="x")
        v = af.get_variable("v", initializer=[1.0, 2.0, 3.0])
        f = af.function(lambda a: a * 2.0 + 1.0)
        y = af.while_loop(lambda i, _: i < 3, lambda i, a: [i + 1, a + f(x)[0]], [0, v.value()])[1]
        af.cond(y[0] > 1.0, lambda: y, lambda: -y)
        af.constant(["a", "b"], name="texts")
        af.FIFOQueue(3, [af.float32]).enqueue(1.0)
    first_years = text_of(
        "name: 'v' op: 'VariableV2' attr { key: 'dtype' value { type: DT_FLOAT } }",
        PLACEHOLDER,
        f"name: 'a' op: 'Assign' input: 'v' input: 'p' {FLOAT}",
        f"name: 'r' op: 'Identity' input: 'v' input: '^a' {FLOAT}",
        "name: 's' op: 'RefSwitch' input: 'v' input: 'b' " + FLOAT,
        "name: 'b' op: 'Placeholder' attr { key: 'dtype' value { type: DT_BOOL } }",
        f"name: 'm' op: 'RefMerge' input: 's' input: 's:1' {FLOAT} attr {{ key: 'N' value {{ i: 2 }} }}",
        "name: 'q' op: 'FIFOQueue' attr { key: 'component_types' value { list { type: DT_FLOAT } } }",
        "name: 'z' op: 'QueueSize' input: 'q'",
    )
    old = GraphDef.FromString(first_years)
    return [graph.as_graph_def(add_shapes=True).SerializeToString(), old.SerializeToString(), first_years]


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes with one to four spans changed, removed, repeated or cut off."""
    made = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randrange(len(made) or 1), rng.randint(1, 12)
        kind = rng.randrange(5)
        if kind == 0:
            made[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            del made[at : at + size]
        elif kind == 2:
            made[at:at] = made[at : at + size]
        elif kind == 3:
            made[at : at + size] = rng.randbytes(size)
        else:
            del made[at:]
    return bytes(made)


def exchanged(rng: random.Random, data: bytes) -> bytes:
    """Return the graph with parts of its nodes swapped: well-formed, but wrong."""
    graph = protos.read("GraphDef", data)
    nodes = list(graph.node) + [node for function in graph.library.function for node in function.node_def]
    for _ in range(rng.randint(1, 4)):
        node, other = rng.choice(nodes), rng.choice(nodes)
        kind = rng.randrange(5)
        if kind == 0:
            node.op = other.op
        elif kind == 1 and node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice([other.name, f"{other.name}:1", f"^{other.name}"])
        elif kind == 2 and other.attr:
            key = rng.choice(sorted(other.attr))
            node.attr[rng.choice([key, *sorted(node.attr)])].CopyFrom(other.attr[key])
        elif kind == 3:
            node.name = other.name
        elif node.attr:
            del node.attr[rng.choice(sorted(node.attr))]
    return graph.SerializeToString()  # type: ignore[no-any-return]  # an instance of a class made at run time


def cases(count: int, seed: int) -> Iterator[bytes]:
    rng, given = random.Random(seed), seeds()
    kinds: list[Callable[[random.Random, bytes], bytes]] = [damaged, exchanged]
    for _ in range(count):
        yield rng.choice(kinds)(rng, rng.choice(given))


def imports_or_refuses(count: int, seed: int) -> None:
    taken = 0
    for data in cases(count, seed):
        with af.Graph().as_default() as graph:
            try:
                interop.tensorflow.import_graph_def(data, name="")
                taken += 1
            except errors.OpError:
                assert graph.get_operations() == []
    assert 0 < taken < count


def test_damaged_graphs_are_imported_or_refused() -> None:
    imports_or_refuses(300, seed=0)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(1, 11))
def test_many_damaged_graphs_are_imported_or_refused(seed: int) -> None:
    imports_or_refuses(CASES // 10, seed)


def test_import_meta_graph_rejects_malformed_files_and_other_types(tmp_path: Path) -> None:
    file: Any = tmp_path / "model.meta"
    for data in (b"", b"hello", b"\x0a\x05", b"meta_info_def {", b"\xff" * 50):
        file.write_bytes(data)
        with af.Graph().as_default(), pytest.raises(errors.OpError, match=r"model\.meta"):
            af.train.import_meta_graph(file)
    for wrong in (3, None, object()):
        with pytest.raises(errors.DTypeError):
            af.train.import_meta_graph(wrong)
    with pytest.raises(errors.NotFoundError):
        af.train.import_meta_graph(tmp_path / "none")


@pytest.mark.parametrize(
    "text",
    [
        "collection_def { key: 'variables' value { bytes_list { value: 'not one' } } }",
        "collection_def { key: 'variables' value { bytes_list { value: '\\n\\003v:0' } } }",
        "collection_def { key: 'losses' value { node_list { value: 'none:0' } } }",
        "collection_def { key: 'queue_runners' value { bytes_list { value: '\\n\\001n' } } }",
        "saver_def { restore_op_name: 'none' }",
    ],
)
def test_import_meta_graph_rejects_inconsistent_collections(text: str) -> None:
    meta = protos.parse_text("MetaGraphDef", "graph_def { node { name: 'n' op: 'NoOp' } } " + text)
    with af.Graph().as_default(), pytest.raises(errors.OpError):
        af.train.import_meta_graph(meta)
