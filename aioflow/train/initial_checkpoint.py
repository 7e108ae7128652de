"""Initial values of variables from a checkpoint: `train.init_from_checkpoint`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.formats.checkpoint import CheckpointReader
from aioflow.graph.default_graph import default_graph
from aioflow.graph.shapes import format_dims, is_compatible
from aioflow.ops.apply import make_list
from aioflow.ops.variables.partitioned import PartitionedVariable
from aioflow.ops.variables.store import VariableStore, store_of
from aioflow.ops.variables.variable import Variable
from aioflow.train.checkpoint_state import load_checkpoint

Target: TypeAlias = str | Variable | PartitionedVariable | Sequence[Variable]


def init_from_checkpoint(
    ckpt_dir_or_file: str | Path, assignment_map: Mapping[str, Target] | Iterable[tuple[str, Target]]
) -> None:
    """Let the initializers of variables load their values from a checkpoint, which may also be TensorFlow's.

    Args:
        ckpt_dir_or_file: Prefix of the checkpoint, or its directory, whose newest one is used.
        assignment_map: Pairs of a name in the checkpoint and a target in the default graph:

            - the name of a tensor: a variable, the parts of one, or the name of a variable made by `get_variable`
            - a scope "from/" ("/" for all names): a scope "to/". Each variable made by `get_variable` in "to/" is
              initialized by the tensor that has the rest of its name in "from/".

    Raises:
        NotFoundError: there is no checkpoint.
        InvalidArgumentError: the checkpoint lacks a tensor, a shape differs, there is no such variable, or the parts
            are of several variables.
    """
    reader = load_checkpoint(ckpt_dir_or_file)
    pairs = assignment_map.items() if isinstance(assignment_map, Mapping) else assignment_map
    store = store_of(default_graph())
    for name, target in sorted(pairs, key=lambda pair: pair[0]):
        for tensor, variable in _assignments(store, name, target):
            _initialize(reader, tensor, variable)


def _assignments(store: VariableStore, name: str, target: Target) -> Iterator[tuple[str, Any]]:
    """Yield the pairs of a tensor in the checkpoint and a variable, or list of parts."""
    if not isinstance(target, str):
        yield name, target
        return
    shared = _shared(store)
    if target in shared:
        yield name, shared[target]
        return
    if not name.endswith("/"):
        raise InvalidArgumentError(
            f"there is no variable {target!r}, and {name!r} is not a scope",
            expected="the name of a variable made by get_variable, or 'from/': 'to/'",
            actual=target,
        )
    scope = target[: target.rindex("/") + 1] if "/" in target else ""
    inside = scope if scope != "/" else ""
    source = "" if name == "/" else name
    for own in sorted(shared):
        if own.startswith(inside):
            yield (source + own.removeprefix(inside)).removesuffix("/"), shared[own]


def _shared(store: VariableStore) -> dict[str, Any]:
    """Return the variables made by `get_variable` by name; a partitioned one by that of the whole."""
    parts = {part.op.name for whole in store.partitioned.values() for part in whole}
    single = {name: variable for name, variable in store.variables.items() if variable.op.name not in parts}
    return single | store.partitioned


def _initialize(reader: CheckpointReader, tensor: str, target: Any) -> None:
    if tensor not in reader:
        raise InvalidArgumentError(
            f"tensor {tensor!r} is not in checkpoint {reader.prefix}",
            expected=f"one of {reader.names()}",
            actual=tensor,
        )
    parts = [target] if isinstance(target, Variable) else list(target)
    if not parts or not all(isinstance(part, Variable) for part in parts):
        raise DTypeError("not a variable", expected="a Variable, its parts or its name", actual=repr(target))
    infos = [None if isinstance(target, Variable) else part.save_slice_info for part in parts]
    wholes = {info.full_name if info is not None else part.op.name for info, part in zip(infos, parts, strict=True)}
    if len(wholes) > 1:
        raise InvalidArgumentError("the parts are of several variables", expected="one", actual=sorted(wholes))
    for info, part in zip(infos, parts, strict=True):
        dims = part.dims if info is None else tuple(info.full_shape)
        if not is_compatible(dims, reader.shape(tensor)):
            raise InvalidArgumentError(
                f"variable {part.op.name} cannot be initialized by tensor {tensor!r}",
                expected=format_dims(dims),
                actual=format_dims(reader.shape(tensor)),
            )
        graph = part.graph
        with graph.as_default(), graph.control_dependencies(None), graph.name_scope(None):
            spec = "" if info is None else info.spec
            named = f"{part.op.name}/checkpoint_initializer"
            (value,) = make_list("RestoreV2", reader.prefix, [tensor], [spec], dtypes=[part.dtype], name=named)
        part.initialize_from(value)
