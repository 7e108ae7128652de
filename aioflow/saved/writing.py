"""`save`: check the arguments, and write a model to a folder atomically."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

from aioflow.arguments import check_kind
from aioflow.concurrency.stopping import checkpoint
from aioflow.concurrency.threads import in_thread
from aioflow.errors import (
    AlreadyExistsError,
    ClosedSessionError,
    DTypeError,
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
)
from aioflow.formats.checkpoint import write_checkpoint
from aioflow.formats.files import file_errors
from aioflow.formats.manifests import MANIFEST as CHECKPOINT_MANIFEST
from aioflow.formats.stores import store_of
from aioflow.formats.temporary_folders import temporary_folder
from aioflow.formats.tensor_encoding import Storable
from aioflow.graph import dtypes
from aioflow.graph.default_session import check_session
from aioflow.graph.graph import Graph, GraphKeys, Operation, Tensor
from aioflow.graph.graphdef import GraphDef
from aioflow.interop.assets import asset_names, assets_of, keeping_assets
from aioflow.interop.model import DEFAULT_SIGNATURE, Signature, TokenLoop
from aioflow.interop.token_loop import check_token_loop
from aioflow.memory.values import Array
from aioflow.ops.apply import make
from aioflow.ops.variables.variable import Variable
from aioflow.saved.manifest import ASSETS, MANIFEST, Asset, FileEntry, Manifest, StoredSignature, TensorInfo, Weight
from aioflow.saved.places import ModelFolder, copied
from aioflow.saved.replacing import being_written, replace_manifest, unless_it_fails
from aioflow.saved.stored_graph import VARIABLE, ops_used, pruned
from aioflow.saved.stored_weights import columns_of, exports, without_constants
from aioflow.session.session import Session

# ── arguments: signatures and variables of a model ────────────────────────────────────────────────────────────────────


_KEPT_IN: Final = (GraphKeys.GLOBAL_VARIABLES, GraphKeys.LOCAL_VARIABLES, GraphKeys.MODEL_VARIABLES)


def calls_of(graph: Graph, signatures: Any) -> dict[str, Signature]:
    if isinstance(signatures, Signature):
        signatures = {DEFAULT_SIGNATURE: signatures}
    check_kind(signatures, Mapping, "the signatures", "a Signature, or a dictionary of some by name")
    if not signatures:
        raise InvalidArgumentError("a model needs a signature", expected="at least one", actual="none")
    return {name: _call(graph, name, signature) for name, signature in signatures.items()}


def _call(graph: Graph, name: str, signature: Any) -> Signature:
    check_kind(name, str, "the name of a signature", "a str")
    if isinstance(signature, tuple) and len(signature) == 2:
        signature = Signature(*signature)
    check_kind(signature, Signature, f"signature {name!r}", "a Signature, or two dictionaries: inputs and outputs")
    inputs, outputs = (_tensors(graph, name, given) for given in (signature.inputs, signature.outputs))
    if not outputs:
        raise InvalidArgumentError(f"signature {name!r} has no outputs", expected="at least one", actual="none")
    twice = len(set(inputs.values())) < len(inputs)
    if twice:
        raise InvalidArgumentError(f"two inputs of signature {name!r} are one tensor", expected="a tensor for each")
    return Signature(inputs, outputs, signature.method)


def _tensors(graph: Graph, signature: str, given: Any) -> dict[str, Tensor]:
    check_kind(given, Mapping, f"the tensors of signature {signature!r}", "a dictionary of tensors by name")
    found: dict[str, Tensor] = {}
    for name, value in given.items():
        check_kind(name, str, f"a name of signature {signature!r}", "a str")
        tensor: Any = graph.as_graph_element(value, allow_operation=False)
        # Handles have no meaning outside of the process.
        if tensor.dtype in (dtypes.resource, dtypes.variant):
            raise DTypeError(
                f"{name!r} of signature {signature!r} is a handle", expected="a tensor of values", actual=tensor.dtype
            )
        found[name] = tensor
    return found


def stored(signature: Signature) -> StoredSignature:
    inputs, outputs = (
        tuple(TensorInfo(name, tensor.name, tensor.dtype, tensor.dims) for name, tensor in tensors.items())
        for tensors in (signature.inputs, signature.outputs)
    )
    return StoredSignature(inputs, outputs, signature.method)


def variables_of(graph: Graph, definition: GraphDef) -> tuple[tuple[Weight, ...], list[Operation]]:
    """Return the variables of a definition, and the operations of their handles."""
    handles = [graph.get_operation_by_name(node.name) for node in definition.nodes if node.op == VARIABLE]
    known = _known(graph)
    # A variable without an entry in any collection counts as trainable below.
    trained = {v.handle.op for v in graph.get_collection(GraphKeys.TRAINABLE_VARIABLES) if hasattr(v, "handle")}
    weights = [
        Weight(handle.name, handle.attrs["dtype"], handle.attrs["shape"], handle not in known or handle in trained)
        for handle in handles
    ]
    return tuple(weights), handles


def _known(graph: Graph) -> dict[Operation, Variable]:
    return {v.handle.op: v for key in _KEPT_IN for v in graph.get_collection(key) if hasattr(v, "handle")}


def reads_of(graph: Graph, handles: list[Operation]) -> list[Tensor]:
    """Return a fetchable read of each variable."""
    known = _known(graph)
    plain = _plain_reads(graph) if any(handle not in known for handle in handles) else {}
    reads = []
    for handle in handles:
        variable = known.get(handle)
        # An existing read is preferred, since a finalized graph takes no new nodes.
        read = plain.get(handle) if variable is None else _value(graph, variable)
        reads.append(_new_read(graph, handle) if read is None else read)
    return reads


def _value(graph: Graph, variable: Variable) -> Tensor:
    with graph.as_default(), graph.control_dependencies(None):
        found: Tensor = variable.value()
        return found


def _plain_reads(graph: Graph) -> dict[Operation, Tensor]:
    """Return, for each handle that has one, a fetchable read without control inputs."""
    return {
        op.inputs[0].op: op.outputs[0]
        for op in graph.get_operations()
        if op.type == "ReadVariableOp" and not op.waits_for and graph.is_fetchable(op)
    }


def _new_read(graph: Graph, handle: Operation) -> Tensor:
    with graph.as_default(), graph.control_dependencies(None), graph.colocate_with(handle):
        found: Tensor = make("ReadVariableOp", handle.outputs[0], dtype=handle.attrs["dtype"])
        return found


# ── the folder ────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# A new local folder is filled under a temporary name and renamed. An existing model, or one in a store, which cannot
# rename, gets files with names that are new, and then the manifest that refers to them, atomically (`replacing.py`).


Signatures: TypeAlias = Mapping[str, Signature | tuple[Mapping[str, Any], Mapping[str, Any]]] | Signature


@dataclass(frozen=True, slots=True)
class _Content:
    """The content of a model folder.

    Attributes:
        constants: The large constants of the definition, by their names in the file.
        assets: Path of the file, by the name of the tensor that holds the path.
    """

    definition: GraphDef
    signatures: Mapping[str, StoredSignature]
    variables: tuple[Weight, ...]
    constants: Mapping[str, Array]
    assets: Mapping[str, str]
    token_loop: TokenLoop | None = None


async def save(
    session: Session,
    folder: str | os.PathLike[str],
    signatures: Signatures,
    assets: Mapping[Tensor, str | os.PathLike[str]] | None = None,
    overwrite: bool = False,
    token_loop: TokenLoop | None = None,
) -> str:
    """Save a model: the graph that its signatures need, values of variables, entries of tables, and assets.

        await aioflow.saved.save(session, "model", aioflow.saved.Signature({"x": x}, {"y": y}))

    The values are those of one moment. If the variables are in the memory of this process and the model has no tables,
    the values are not copied: a step that changes a variable during the save copies what it changes. Devices are not
    saved: a model describes the computation, not its placement.

    Args:
        session: A session of the graph, in which its variables have values.
        folder: A path, or the URL of a folder in a store. Missing parent folders are created.
        signatures: One `Signature`, which becomes "serving_default", or several by name. Each is a `Signature`, or a
            pair of dictionaries, of inputs and of outputs, from names to tensors.
        assets: Paths of files, by the string scalar tensors that hold them. Each file is copied into the folder. In
            the loaded model, the tensor holds the path of the copy.
        overwrite: Replace an existing model, atomically: a concurrent `load` returns the old or the new one. The files
            of the old model stay while it is loaded on this machine, and in a store until the next save. A save that
            fails or is cancelled leaves the model as it was; the next save removes the remains of a killed one from a
            folder.
        token_loop: How to generate tokens with the signatures. `aioflow serve` then answers streams of tokens.

    Returns:
        The folder.

    Raises:
        UnsupportedError: the model needs state that only this process has: Python functions, queues, placeholders that
            are not inputs; the error lists it all.
        AlreadyExistsError: the folder has a model, and `overwrite` is false; or it is not empty and not a model.
        NotFoundError: an asset is missing.
        InvalidArgumentError: a signature or an asset does not fit the graph, or the token loop not the signatures.
        UnimplementedError: the path of an asset is the value of a variable, as in TensorFlow 2.
        FailedPreconditionError: a variable has no value, or a table no entries.
        ClosedSessionError: the session is closed.
        PermissionDeniedError, ResourceExhaustedError, …: the file system refuses; the error names the file.
    """
    check_session(session)
    check_kind(folder, (str, os.PathLike), "the folder of a model", "a str or a path")
    place, graph = ModelFolder(folder), session.graph
    calls = calls_of(graph, signatures)
    if token_loop is not None:
        check_kind(token_loop, TokenLoop, "token_loop", "a TokenLoop")
        check_token_loop(token_loop, calls)
    paths = assets_of(graph, assets or {})
    # Fails before the values are read, which may take long.
    await in_thread(_check_free, place, overwrite, effects=False)
    await in_thread(_check_assets, list(paths.values()), effects=False)
    definition = await in_thread(pruned, graph, calls, list(paths), effects=False)
    small, constants = await in_thread(without_constants, definition, effects=False)
    variables, handles = variables_of(graph, definition)
    if keepers := keeping_assets(graph, paths, {variable.name for variable in variables}):
        raise UnimplementedError(
            "the path of an asset is the value of a variable, which would still name the file of before",
            expected="a graph that reads the path itself",
            actual=", ".join(keepers),
        )
    columns = columns_of(graph, definition)
    values = await _values(session, handles, exports(columns))
    content = _Content(
        small,
        {name: stored(signature) for name, signature in calls.items()},
        variables,
        constants,
        {tensor.name: path for tensor, path in paths.items()},
        token_loop,
    )
    names = [*(variable.name for variable in variables), *(column.name for column in columns)]
    tensors = dict(zip(names, values, strict=True))
    await in_thread(_write, place, content, tensors, overwrite)
    return place.name


async def _values(session: Session, handles: list[Operation], entries: list[Tensor]) -> Sequence[Storable]:
    """Return the values of variables and tables at one moment.

    Without tables, variables of this process are returned as snapshots, read when the file is written. Tables are
    fetched, together with the variables, by one step.
    """
    if session.closed:
        raise ClosedSessionError.refusing()
    if not handles and not entries:
        return []
    if not entries:
        with suppress(UnimplementedError):  # the variables are in other processes
            names = [(handle.attrs["container"], handle.attrs["shared_name"] or handle.name) for handle in handles]
            held = session.worker.snapshots(names)
            if held is not None:
                return held
    fetched: list[Array] = await session.run([*reads_of(session.graph, handles), *entries])
    return fetched


# ── writing: this blocks ──────────────────────────────────────────────────────────────────────────────────────────────


def _check_free(place: ModelFolder, overwrite: bool) -> None:
    """Raise AlreadyExistsError if the folder must not be written."""
    store, _ = place.store(MANIFEST)
    is_model = store.size(MANIFEST) is not None
    if is_model and not overwrite:
        raise AlreadyExistsError(f"there is a model in {place.name}", expected="nothing there, or overwrite=True")
    if not is_model and not place.is_remote and os.path.lexists(place.name) and not _is_empty(place.name):
        raise AlreadyExistsError(f"{place.name} is there already, and no model", expected="nothing of that name")


def _check_assets(paths: list[str]) -> None:
    """Raise NotFoundError if a file is missing, before anything is read or written."""
    for path in dict.fromkeys(paths):
        store, name = store_of(path)
        if store.size(name) is None:
            raise NotFoundError(f"asset {path} is missing", expected="a file", actual="none")


def _is_empty(path: str) -> bool:
    with file_errors(path):
        return os.path.isdir(path) and not os.listdir(path)


def _write(place: ModelFolder, content: _Content, tensors: Mapping[str, Storable], overwrite: bool) -> None:
    # `save` checks this only to fail early; another process may have written a model since.
    _check_free(place, overwrite)
    if not place.is_remote and not os.path.exists(place.path(MANIFEST)):
        with temporary_folder(Path(place.name)) as made:
            new = ModelFolder(made.path)
            store, name = new.store(MANIFEST)
            store.put(name, _Writer(new, "").write(content, tensors).to_bytes())
            # The rename is atomic: other processes see no model or a whole one.
            made.publish()
        return
    # Random, because another process may save into the folder at the same time.
    mark = f"-{secrets.token_hex(6)}"
    with being_written(place, mark), unless_it_fails(place, mark):
        manifest = _Writer(place, mark).write(content, tensors)
        checkpoint()
        replace_manifest(place, manifest)


class _Writer:
    """The writer of one model folder.

    Args:
        place: The folder.
        mark: A suffix of the file names that no other version has.
    """

    def __init__(self, place: ModelFolder, mark: str) -> None:
        self._place = place
        self._mark = mark

    def write(self, content: _Content, tensors: Mapping[str, Storable]) -> Manifest:
        """Write all files but the manifest, and return the manifest."""
        assets = self._assets(content.assets)  # first, so that a missing file fails before the rest is written
        checkpoint()
        graph = self._put(f"graph{self._mark}.aiograph", content.definition.to_bytes())
        ops = self._put(f"ops{self._mark}.json", ops_used(content.definition).to_json().encode())
        # One file: names of constants contain colons, names of variables do not.
        tensors = {**tensors, **content.constants}
        weights = self._weights(tensors) if tensors else None
        return Manifest(
            content.signatures, graph, ops, weights, content.variables, assets, token_loop=content.token_loop
        )

    def _put(self, name: str, data: bytes) -> FileEntry:
        store, last = self._place.store(name)
        store.put(last, data)
        return FileEntry(name, len(data), hashlib.sha256(data).hexdigest())

    def _weights(self, tensors: Mapping[str, Storable]) -> FileEntry:
        prefix = f"weights{self._mark}"
        write_checkpoint(self._place.path(prefix), tensors)
        store, name = self._place.store(prefix + CHECKPOINT_MANIFEST)
        data = store.read(name)
        return FileEntry(name, len(data), hashlib.sha256(data).hexdigest())

    def _assets(self, assets: Mapping[str, str]) -> tuple[Asset, ...]:
        copies: dict[str, FileEntry] = {}
        for path, final in asset_names(assets.values(), self._mark).items():
            source, name = store_of(path)
            with source.open(name) as file:
                copies[path] = self._copy(f"{ASSETS}/{final}", file)
        return tuple(Asset(tensor, copies[path]) for tensor, path in assets.items())

    def _copy(self, name: str, file: BinaryIO) -> FileEntry:
        store, last = self._place.store(name)
        with store.creating(last) as upload:
            size, digest = copied(file, upload.file)
            upload.commit()
        return FileEntry(name, size, digest)
