"""The public names of `aioflow` and its namespaces, and their agreement with TensorFlow 1."""

from __future__ import annotations

import ast
import importlib
import inspect
import pydoc
import sys
import tomllib
import typing
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

import pytest

import aioflow as af
from aioflow.ops import public as public_builders
from aioflow.ops.public import _BUILDERS
from tests.tensorflow_names import NAMES

ROOT = Path(__file__).parents[1]

NAMESPACES = {
    "app", "bitwise", "control_flow_ops", "data", "debugging", "distributed", "dtypes", "errors", "extend", "flags",
    "gfile", "graph_util", "image", "initializers", "interop", "io", "layers", "linalg", "logging", "lookup", "losses",
    "manip", "math", "metrics", "mixed_precision", "nn", "observe", "python_io", "queue", "random", "raw_ops",
    "resource_loader", "saved", "signal", "sparse", "spectral", "strings", "summary", "tensor_util", "train", "traits",
    "typing", "web",
}  # fmt: skip
# Namespaces whose names can be loaded here: the flags need absl.
LOADABLE = NAMESPACES - (set() if find_spec("absl") else {"flags"})

# Names that TensorFlow 1 does not have. Everything else in `aioflow.__all__` is a TensorFlow name.
OWN = {
    "Barrier", "BatchStatistics", "Batched", "Case", "ConcreteFunction", "DeviceAttributes", "For", "If", "Padding",
    "PartitionedCall", "PartitionedVariable", "PolymorphicFunction", "SessionConfig", "StagingArea", "TraceLevel",
    "While", "compressed", "extend", "from_async_iterator", "function", "list_devices", "py_coroutine",
    "restore_switch_interval", "traits",
}  # fmt: skip

# Names whose arguments differ from TensorFlow's on purpose.
DIFFERENT = {
    "CriticalSection": "none is made from a definition in a protocol buffer",
    "DType": "TensorFlow makes one from an enum number; aioflow's are all made already: `as_dtype`",
    "get_local_variable": "what follows is passed on to get_variable",
    "variable_op_scope": "what follows is passed on to variable_scope",
    "random.stateless_normal": "no choice of algorithm",
    "random.stateless_truncated_normal": "no choice of algorithm",
    "random.stateless_uniform": "no choice of algorithm",
    "train.Optimizer": "slots have name scopes of their own in no case",
    "train.update_checkpoint_state": "last_preserved_timestamp belongs to keep_checkpoint_every_n_hours",
}


def namespace(name: str) -> ModuleType:
    module: ModuleType = getattr(af, name) if name else af
    return module


def public(module: ModuleType) -> list[str]:
    return list(getattr(module, "__all__", None) or dir(module))


# ── exported names ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_all_lists_the_visible_names() -> None:
    modules = {name for name in af.__all__ if isinstance(getattr(af, name), ModuleType)}
    assert modules == NAMESPACES
    assert af.__all__ == sorted(set(af.__all__))
    visible = {n for n, v in vars(af).items() if not n.startswith("_") and not isinstance(v, ModuleType)}
    assert visible == set(af.__all__) - NAMESPACES
    assert not [n for n in af.__all__ if n.startswith("_")]


def test_star_import_defines_the_names_of_all() -> None:
    scope: dict[str, Any] = {}
    exec("from aioflow import *", scope)
    assert set(scope) - {"__builtins__"} == set(af.__all__)


@pytest.mark.parametrize("name", sorted(LOADABLE - {"raw_ops"}))
def test_namespace_declares_all_and_has_a_docstring(name: str) -> None:
    module = namespace(name)
    assert len(set(module.__all__)) == len(module.__all__)
    assert not [n for n in module.__all__ if n.startswith("_") or isinstance(getattr(module, n), ModuleType)]
    assert module.__doc__


def test_table_of_builders_matches_the_families_exports() -> None:
    """A name that two families export would be found in one of them only."""
    rows = {module: [name for name, home in _BUILDERS.items() if home == module] for module in _BUILDERS.values()}
    assert len(rows) >= 30
    assert rows == {module: importlib.import_module(module).__all__ for module in rows}
    assert set(_BUILDERS) <= set(af.__all__)
    tree = ast.parse(Path(public_builders.__file__).read_text(encoding="utf-8"))
    stars = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"}
    assert stars == set(rows), "what type checkers see"


@pytest.mark.parametrize("where", ["", *sorted(LOADABLE - {"flags"})])  # which are absl's
def test_every_public_name_has_a_docstring(where: str) -> None:
    values = {name: getattr(namespace(where), name) for name in public(namespace(where))}
    assert [name for name, value in values.items() if not documented(value)] == []
    members = {f"{n}.{m}": part for n, value in values.items() if inspect.isclass(value) for m, part in own(value)}
    assert [name for name, part in members.items() if not inspect.getdoc(part)] == []


def documented(value: Any) -> bool:
    if get_origin(value) is not None or not (callable(value) or isinstance(value, ModuleType)):
        return True  # an alias of a type, or a constant
    doc = inspect.getdoc(value)
    return bool(doc) and doc != inspect.getdoc(type(value))


def own(kind: type) -> list[tuple[str, Any]]:
    """Return the public methods and properties that a class defines."""
    return [
        (name, getattr(kind, name))
        for name, part in vars(kind).items()
        if not name.startswith("_") and (inspect.isfunction(part) or isinstance(part, property | classmethod))
    ]


def test_errors_have_their_public_qualified_names() -> None:
    for name in af.errors.__all__:
        value = getattr(af.errors, name)
        assert name.isupper() or (value.__module__, value.__qualname__) == ("aioflow.errors", name)
    assert af.OpError is af.errors.OpError
    queue = [af.errors.AioflowError]
    for error in queue:
        queue.extend(error.__subclasses__())
    assert len(queue) >= 20
    for error in queue:
        own = error.__module__.startswith("aioflow") and error.__module__ != "aioflow.errors"
        assert not own or error.__base__ is not af.errors.AioflowError, error


def test_dtype_names_and_invalid_dtype_strings() -> None:
    assert (af.bool.name, af.half, af.double) == ("bool", af.float16, af.float64)
    for name in af.dtypes.__all__:
        assert getattr(af, name) is getattr(af.dtypes, name)
    for text in ("(2,", "i4,f8", "(1+", "float33", ""):
        with pytest.raises(af.errors.DTypeError):
            af.as_dtype(text)


def test_version_equals_that_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert af.__version__ == project["version"]


# ── TensorFlow's names and arguments ─────────────────────────────────────────────────────────────────────────────────


def promises() -> dict[str, list[str] | None]:
    """Return the promised names with their arguments, or None for a name whose arguments are not compared."""
    found: dict[str, list[str] | None] = {}
    for where, text in NAMES.items():
        for line in text.replace("\n    ", " ").split("\n"):
            name, bracket, arguments = line.strip().partition("(")
            if name and (where in LOADABLE or where not in NAMESPACES):
                key = f"{where}.{name}".strip(".")
                found[key] = [a for a in arguments.rstrip(")").split(", ") if a] if bracket else None
    return found


PROMISES = promises()


def resolve(key: str) -> Any:
    value: Any = af
    for part in key.split("."):
        value = getattr(value, part)
    return value


def arguments(value: Any) -> list[str]:
    return [
        "*" * (p.kind is p.VAR_POSITIONAL) + "**" * (p.kind is p.VAR_KEYWORD) + p.name
        for p in inspect.signature(value).parameters.values()
    ]


def test_arguments_start_with_tensorflows() -> None:
    mine = {key: arguments(resolve(key)) for key, expected in PROMISES.items() if expected is not None}
    wrong = {key: have for key, have in mine.items() if have[: len(PROMISES[key] or ())] != PROMISES[key]}
    assert wrong.keys() == DIFFERENT.keys(), {
        key: (mine[key], PROMISES[key]) for key in wrong.keys() ^ DIFFERENT.keys()
    }


@pytest.mark.parametrize("key", [key for key, expected in PROMISES.items() if expected is None])
def test_names_without_arguments_exist(key: str) -> None:
    assert resolve(key) is not None or key == "newaxis"


def test_public_names_are_tensorflows_or_listed_as_own() -> None:
    promised = {key for key in PROMISES if "." not in key}
    assert set(af.__all__) - promised == OWN | (NAMESPACES - {*promised, *OWN})
    assert set(DIFFERENT) <= set(PROMISES)
    assert len(PROMISES) >= 500


# The names of the first milestone. `tests/tensorflow_names.py` has their arguments.
MILESTONE = """
    placeholder placeholder_with_default constant Variable get_variable variable_scope get_variable_scope AUTO_REUSE
    name_scope device colocate_with control_dependencies Graph Operation Tensor TensorShape Dimension GraphKeys
    get_default_graph reset_default_graph add_to_collection get_collection set_random_seed import_graph_def GraphDef
    NodeDef Session RunOptions RunMetadata OpError errors IndexedSlices convert_to_tensor get_default_session DeviceSpec
    gradients hessians stop_gradient custom_gradient RegisterGradient NotDifferentiable NoGradient AggregationMethod
    global_variables_initializer local_variables_initializer variables_initializer global_variables trainable_variables
    is_variable_initialized report_uninitialized_variables assign assign_add assign_sub scatter_add scatter_update
    group tuple no_op identity identity_n add subtract multiply divide truediv floordiv mod pow matmul einsum tensordot
    abs negative sign square sqrt rsqrt exp log log1p sin cos tanh sigmoid erf maximum minimum cast argmax argmin
    equal not_equal less less_equal greater greater_equal logical_and logical_or logical_not where
    reduce_sum reduce_mean reduce_max reduce_min reduce_prod reduce_any reduce_all reduce_logsumexp cumsum cumprod
    shape rank size reshape transpose squeeze expand_dims concat stack unstack split tile pad slice strided_slice gather
    gather_nd scatter_nd one_hot zeros ones zeros_like ones_like fill range linspace reverse boolean_mask unique
    segment_sum unsorted_segment_sum clip_by_value clip_by_norm clip_by_global_norm global_norm check_numerics
    random_uniform random_normal truncated_normal random_shuffle multinomial zeros_initializer ones_initializer
    constant_initializer glorot_uniform_initializer random_normal_initializer truncated_normal_initializer
    nn.relu nn.relu6 nn.elu nn.selu nn.leaky_relu nn.softplus nn.softmax nn.log_softmax nn.conv2d nn.max_pool
    nn.avg_pool nn.bias_add nn.batch_normalization nn.fused_batch_norm nn.moments nn.dropout nn.l2_loss nn.l2_normalize
    nn.top_k nn.softmax_cross_entropy_with_logits nn.sparse_softmax_cross_entropy_with_logits nn.in_top_k
    nn.embedding_lookup nn.sigmoid_cross_entropy_with_logits train.Saver train.latest_checkpoint
    train.GradientDescentOptimizer train.MomentumOptimizer train.AdagradOptimizer train.AdadeltaOptimizer
    train.AdamOptimizer train.RMSPropOptimizer train.FtrlOptimizer train.ExponentialMovingAverage
    train.exponential_decay train.piecewise_constant
    train.polynomial_decay train.cosine_decay train.get_or_create_global_step train.write_graph
    float16 float32 float64 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128 string
    resource half double DType as_dtype
"""


def test_milestone_is_complete() -> None:
    missing = [key for key in MILESTONE.split() if key not in PROMISES and key not in NAMESPACES]
    assert missing == []


# ── annotations ──────────────────────────────────────────────────────────────────────────────────────────────────────

# Public modules that are not in `aioflow.__all__`.
FURTHER = {
    "data.experimental", "interop.onnx", "interop.safetensors", "interop.tensorflow", "io.gfile", "lookup.experimental",
    "mixed_precision.experimental", "nn.rnn_cell", "serve", "testing", "train.experimental",
}  # fmt: skip


@pytest.mark.parametrize("where", ["", *sorted(LOADABLE | FURTHER)])
def test_annotations_can_be_resolved(where: str) -> None:
    """pydantic, FastAPI, Sphinx and `inspect.signature(…, eval_str=True)` resolve annotations in this way."""
    module = importlib.import_module(f"aioflow.{where}".rstrip("."))
    wrong = {}
    for name, value in annotated(module):
        try:
            typing.get_type_hints(value)
            if not inspect.isclass(value):
                inspect.signature(value, eval_str=True)
        except Exception as error:
            wrong[name] = repr(error)
    assert wrong == {}


def annotated(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the functions and classes of aioflow that a module exports, and the functions of those classes."""
    for name in public(module):
        try:
            value = getattr(module, name)
        except af.errors.UnimplementedError:  # the name needs an extra that is not installed
            continue
        if inspect.isclass(value) and value.__module__.startswith("aioflow"):
            yield name, value
            parts = {f"{name}.{m}": inspect.getattr_static(value, m) for m in dir(value) if open_to_all(m)}
            yield from ((m, own) for m, part in parts.items() if (own := function(part)) is not None)
        elif (own := function(value)) is not None:
            yield name, own


def open_to_all(name: str) -> bool:
    return not name.startswith("_") or name.startswith("__")


def function(part: Any) -> Any:
    """Return the function of aioflow that `part` is or wraps, or None."""
    part = part.fget if isinstance(part, property) else getattr(part, "__func__", part)
    found = inspect.unwrap(part) if callable(part) else part
    return found if inspect.isfunction(found) and found.__module__.startswith("aioflow") else None


def test_help_shows_functions_and_classes() -> None:
    text = pydoc.plain(pydoc.render_doc(af))
    assert "matmul(" in text
    assert "class Session(" in text


def test_classes_are_importable_by_module_and_name() -> None:
    classes = [value for name in af.__all__ if inspect.isclass(value := getattr(af, name))]
    assert [each for each in classes if getattr(sys.modules[each.__module__], each.__name__) is not each] == []
