"""The contents of a SavedModel's folder: the message with its graphs, and their signatures, savers and assets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from aioflow.errors import InvalidArgumentError, NotFoundError, OpError, ResourceExhaustedError
from aioflow.formats.stores import Store
from aioflow.interop.tensorflow.pruning import node_of
from aioflow.protos import Message, parse, read

FILES: Final = ("saved_model.pb", "saved_model.pbtxt")
VARIABLES: Final = "variables/variables"
ASSETS: Final = "assets"
# Signatures that hold a node to run rather than a way to call the model.
INIT_SIGNATURES: Final = ("__saved_model_init_op", "__saved_model_train_op")
_INIT_COLLECTIONS: Final = ("saved_model_main_op", "legacy_init_op")
_ASSET_COLLECTION: Final = "saved_model_assets"
_SERVE: Final = frozenset({"serve"})
_MAX_BYTES: Final = 1 << 31  # the limit of protocol buffers for a message


def saved_model(store: Store, place: str) -> Message:
    """Return the SavedModel message. Raise NotFoundError, DataLossError or ResourceExhaustedError."""
    for name in FILES:
        size = store.size(name)
        if size is None:
            continue
        if size > _MAX_BYTES:
            raise ResourceExhaustedError(f"{store.path(name)} is too large", expected=_MAX_BYTES, actual=size)
        try:
            data = store.read(name)
            return read("SavedModel", data) if name.endswith("txt") else parse("SavedModel", data)
        except OpError as error:
            error.message = f"{store.path(name)}: {error.message}"
            raise
    raise NotFoundError(f"there is no SavedModel in {place}", expected=" or ".join(FILES), actual=store.names()[:10])


def meta_graph(model: Message, tags: Iterable[str] | str | None, place: str) -> Message:
    """Return the graph with these tags. Raise NotFoundError if there is no such graph."""
    known = [frozenset(meta.meta_info_def.tags) for meta in model.meta_graphs]
    if tags is None:
        wanted = known[0] if len(known) == 1 else _SERVE
    else:
        wanted = frozenset([tags] if isinstance(tags, str) else tags)
    for own, meta in zip(known, model.meta_graphs, strict=True):
        if own == wanted:
            return meta
    raise NotFoundError(
        f"no graph of the SavedModel in {place} has these tags",
        expected=f"one of {[sorted(own) for own in known]}",
        actual=sorted(wanted),
    )


@dataclass(frozen=True)
class MetaGraphParts:
    """The parts of a MetaGraphDef beside its graph.

    Attributes:
        signatures: The callable signatures, by name.
        init: Nodes to run once the variables have their values.
        restore: The node that restores the variables, or "".
        filename: The tensor that holds the checkpoint's name, or "".
        assets: File names, by the tensors that hold their paths.
    """

    signatures: Mapping[str, Message]
    init: tuple[str, ...]
    restore: str
    filename: str
    assets: Mapping[str, str]

    @classmethod
    def of(cls, meta: Message) -> MetaGraphParts:
        """Return the parts of a MetaGraphDef. Raise InvalidArgumentError if an asset is outside the model."""
        signatures = {k: meta.signature_def[k] for k in sorted(meta.signature_def) if k not in INIT_SIGNATURES}
        init = [
            tensor.name
            for name in INIT_SIGNATURES[:1]
            if name in meta.signature_def
            for tensor in meta.signature_def[name].outputs.values()
        ]
        for name in _INIT_COLLECTIONS:
            # TensorFlow 1 names the node in a collection; the first that exists applies.
            if not init and name in meta.collection_def:
                init = list(meta.collection_def[name].node_list.value)
        saver = meta.saver_def
        return cls(
            signatures,
            tuple(node_of(n) for n in init),
            saver.restore_op_name,
            saver.filename_tensor_name,
            _assets(meta),
        )

    def only(self, names: Iterable[str] | str | None, place: str) -> MetaGraphParts:
        """Return the parts with only these signatures, or with all if `names` is None. Raise NotFoundError."""
        if names is None:
            return self
        wanted = [names] if isinstance(names, str) else list(names)
        missing = [name for name in wanted if name not in self.signatures]
        if missing:
            raise NotFoundError(
                f"the SavedModel in {place} has no such signature",
                expected=f"one of {sorted(self.signatures)}",
                actual=missing,
            )
        return replace(self, signatures={name: self.signatures[name] for name in wanted})

    def tensors(self) -> Iterator[str]:
        """Yield the names of the tensors of the signatures, and of those that hold paths of assets."""
        for signature in self.signatures.values():
            for given in (signature.inputs, signature.outputs):
                yield from (name for key in given for _, name in components(key, given[key]))
        yield from self.assets


def _assets(meta: Message) -> dict[str, str]:
    found = list(meta.asset_file_def)
    if _ASSET_COLLECTION in meta.collection_def:
        # The type name of an Any depends on the program that wrote it, so it is not checked; the content is the same.
        held = meta.collection_def[_ASSET_COLLECTION].any_list.value
        found += [parse("AssetFileDef", each.value) for each in held]
    assets = {each.tensor_info.name: each.filename for each in found}
    for name in assets.values():
        parts = name.replace("\\", "/").split("/")
        if ".." in parts or "" in parts or ":" in parts[0] or "\0" in name:
            raise InvalidArgumentError("an asset is outside of the model", expected="a file in it", actual=repr(name))
    return assets


def components(key: str, info: Message) -> list[tuple[str, str]]:
    """Return pairs of a name and the tensor's own name, for the tensors of one input or output."""
    if info.HasField("coo_sparse"):
        sparse = info.coo_sparse
        names = (sparse.indices_tensor_name, sparse.values_tensor_name, sparse.dense_shape_tensor_name)
        return [(f"{key}/{part}", name) for part, name in zip(("indices", "values", "dense_shape"), names, strict=True)]
    if info.HasField("composite_tensor"):
        parts = info.composite_tensor.components
        return [found for i, part in enumerate(parts) for found in components(f"{key}/{i}", part)]
    return [(key, info.name)] if info.name else []
