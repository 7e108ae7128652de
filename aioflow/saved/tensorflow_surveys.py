"""Surveys of TensorFlow's SavedModels and meta graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from aioflow.checks.brief import brief
from aioflow.errors import InvalidArgumentError
from aioflow.formats.checkpoint import checkpoint_exists
from aioflow.formats.stores import store_at
from aioflow.graph.dtypes import DType
from aioflow.graph.graphdef import GraphDef, NodeDef
from aioflow.graph.older.references import modernized
from aioflow.interop.tensorflow.definitions import definition_and_refused
from aioflow.interop.tensorflow.pruning import pruned
from aioflow.interop.tensorflow.restored import checkpointed_values
from aioflow.interop.tensorflow.saved_model import checkpointed_objects
from aioflow.interop.tensorflow.saved_model_parts import VARIABLES, Parts, saved_model
from aioflow.protos import Message
from aioflow.saved.findings import Parameter, Survey, constants, parameter
from aioflow.saved.opening import META_GRAPH, SAVED_MODEL
from aioflow.saved.pruning import VARIABLE
from aioflow.saved.weight_surveys import values
from aioflow.train.meta_graph_import import read_meta_graph


def saved_model_folder(path: str) -> Survey:
    """Survey a SavedModel, given its folder or its file."""
    place = Path(path) if Path(path).is_dir() else Path(path).parent
    metas = list(saved_model(store_at(place), str(place)).meta_graphs)
    tags = sorted({tag for meta in metas for tag in meta.meta_info_def.tags})
    # A dictionary, so that constants that several graphs share are listed once, in order.
    frozen = {each: None for meta in metas for each in constants(_needed(meta))}
    versions = {"tags": ", ".join(tags)} if metas else {}
    for meta in metas:
        versions["graph"] = str(meta.graph_def.versions.producer)
    return Survey(
        SAVED_MODEL, _producers(metas), versions, _counted(metas), (*_variables(str(place / VARIABLES), metas), *frozen)
    )


def _needed(meta: Message) -> GraphDef:
    """Return the part of the graph that the signatures need.

    Other constants may be initial values of variables, which the checkpoint has as well.
    """
    graph = pruned(meta.graph_def, Parts.of(meta).tensors())
    return definition_and_refused(graph, meta.meta_info_def.stripped_op_list)[0]


def _variables(prefix: str, metas: Iterable[Message]) -> Iterator[Parameter]:
    """Yield the values in the checkpoint.

    If several objects share a variable, only the value that the functions read is included.
    """
    if not checkpoint_exists(prefix):
        return
    objects = checkpointed_objects(prefix)
    keys = {} if objects is None else checkpointed_values(objects)
    names: dict[str, str] = {}
    for saved in (meta.object_graph_def for meta in metas):
        functions = [saved.concrete_functions[name] for name in saved.concrete_functions]
        for number in {number for function in functions for number in function.bound_inputs}:
            if number < len(saved.nodes) and saved.nodes[number].HasField("variable"):
                names.update((key, saved.nodes[number].variable.name) for key in keys.get(number, ()))
    found = [each for each in values(prefix) if not names or each.name in names]
    # Variables of several objects may have the same name. Their keys in the checkpoint tell them apart.
    given = Counter(names.get(each.name, "") for each in found)
    for each in found:
        name = names.get(each.name, "")
        yield Parameter(name if name and given[name] == 1 else each.name, each.dtype, each.shape, each.size)


def meta_graph_file(path: str) -> Survey:
    """Survey a MetaGraphDef without its checkpoint. List variable nodes, or constants if it has no variables."""
    meta = read_meta_graph(path)
    definition, refused = definition_and_refused(meta.graph_def, meta.meta_info_def.stripped_op_list)
    nodes = modernized(definition.nodes)
    found = [_variable(node) for node in nodes if node.op == VARIABLE]
    found = found or list(constants(definition))
    versions = {"graph": str(meta.graph_def.versions.producer)}
    return Survey(META_GRAPH, _producers([meta]), versions, _counted([meta]), tuple(found), tuple(refused))


def _variable(node: NodeDef) -> Parameter:
    dtype, shape = node.attrs.get("dtype"), node.attrs.get("shape")
    if not isinstance(dtype, DType):
        raise InvalidArgumentError(f"variable {node.name} has no dtype", expected="a dtype", actual=brief(dtype))
    sizes = [size for size in shape if isinstance(size, int)] if isinstance(shape, tuple) else []
    return parameter(node.name, dtype.name, sizes, dtype.size)


def _producers(metas: Iterable[Message]) -> str:
    found = {meta.meta_info_def.tensorflow_version for meta in metas}
    return ", ".join(f"TensorFlow {version}" for version in sorted(found) if version)


def _counted(metas: Iterable[Message]) -> Counter[str]:
    ops: Counter[str] = Counter()
    for graph in (meta.graph_def for meta in metas):
        ops.update(node.op for node in graph.node)
        ops.update(node.op for function in graph.library.function for node in function.node_def)
    return ops
