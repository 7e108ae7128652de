"""The manifest of a model folder, `aioflow.json`: its files, its signatures, and the releases that can read it.

It is written last, and holds size and SHA-256 of every other file. `formats/versions.py` states which versions can be
read. The content is untrusted: each name must be that of a file in the folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, NamedTuple, TypeVar

from aioflow.arguments import brief
from aioflow.errors import DataLossError, OpError
from aioflow.formats.manifests import CheckpointManifest, digest_of
from aioflow.formats.versions import readable_version
from aioflow.graph.dtypes import ALL, DType
from aioflow.graph.shapes import Dims
from aioflow.interop.model import TokenLoop, TokenState
from aioflow.release import RELEASE

MANIFEST: Final = "aioflow.json"
ASSETS: Final = "assets"  # folder of the assets
VERSION: Final = 1
FEATURES: Final[frozenset[str]] = frozenset()  # features that a reader may need to know; the format has no features yet
_FORMAT: Final = "aioflow.model"
_DTYPES: Final = {dtype.name: dtype for dtype in ALL}
_NAME: Final = re.compile(r"[^/\\\0:]{1,255}")
_MAX_RANK: Final = 64
# JSON breaks lines only between values, so joining the lines of an innermost list or object does not change it.
_INNERMOST: Final = re.compile(r"[\[{][^\[\]{}]*[\]}]")
_LINE: Final = re.compile(r"\n\s*")

T = TypeVar("T")


class FileEntry(NamedTuple):
    """A file of the folder: name, size in bytes, and SHA-256."""

    name: str
    size: int
    sha256: str


class TensorInfo(NamedTuple):
    """An input or output of a signature: the name in the signature, the tensor's name in the graph, dtype and shape."""

    name: str
    tensor: str
    dtype: DType
    shape: Dims


class StoredSignature(NamedTuple):
    """One signature of the model."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    method: str = ""


class Weight(NamedTuple):
    """A variable: the name of its handle's node, which is also its name in the checkpoint, dtype and shape."""

    name: str
    dtype: DType
    shape: Dims
    trainable: bool


class Asset(NamedTuple):
    """A file of the model, and the tensor that holds its path."""

    tensor: str
    file: FileEntry


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a model folder.

    Attributes:
        graph, ops: The definition, and the producer's defaults for the attributes of its ops.
        weights: The manifest of the checkpoint with the values of the variables; None without variables.
        producer: The release that wrote it.
        version: The format version; after reading, the version whose rules applied.
        replaced: The files of earlier versions that may still exist for their readers: the `files` of each.
        token_loop: How to generate tokens with the model. A reader may ignore it.
    """

    signatures: Mapping[str, StoredSignature]
    graph: FileEntry
    ops: FileEntry
    weights: FileEntry | None = None
    variables: tuple[Weight, ...] = ()
    assets: tuple[Asset, ...] = ()
    producer: str = RELEASE
    version: int = VERSION
    replaced: tuple[tuple[str, ...], ...] = ()
    unknown: tuple[str, ...] = field(default=(), compare=False)
    token_loop: TokenLoop | None = None

    @property
    def files(self) -> list[str]:
        """Names of the files that the manifest covers, without those of the checkpoint; the graph's is first."""
        found = [self.graph.name, self.ops.name, *(asset.file.name for asset in self.assets)]
        return [*found, self.weights.name] if self.weights else found

    # -- writing ------------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Encode the manifest as JSON, with its checksum."""
        content: CheckpointManifest = {
            "format": _FORMAT,
            "version": VERSION,
            "min_reader": 1,
            "min_release": "0.1.0",
            "requires": {},
            "producer": self.producer,
            "signatures": {
                name: {
                    "method": signature.method,
                    "inputs": [_tensor_document(info) for info in signature.inputs],
                    "outputs": [_tensor_document(info) for info in signature.outputs],
                }
                for name, signature in self.signatures.items()
            },
            "graph": self.graph._asdict(),
            "ops": self.ops._asdict(),
            "weights": self.weights._asdict() if self.weights else None,
            "variables": [_described(variable) for variable in self.variables],
            "assets": [{"tensor": asset.tensor, **asset.file._asdict()} for asset in self.assets],
        }
        if self.replaced:
            content["replaced"] = self.replaced
        if self.token_loop is not None:
            content["token_loop"] = asdict(self.token_loop)
        return sealed(content)

    # -- reading ------------------------------------------------------------------------------------------------------

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> Manifest:
        """Decode a manifest.

        Args:
            data: The contents of the file.
            path: Name of the file in errors.

        Raises:
            DataLossError: the manifest is truncated, altered or inconsistent.
            UnimplementedError: only a later release can read it.
        """
        try:
            content = json.loads(data)
            digest = content.pop("sha256")
            whole = content["format"] == _FORMAT and digest == digest_of(content)
            content["version"] = _number(content["version"])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise DataLossError(
                f"file {path} is damaged", expected="a model's manifest", actual=brief(error)
            ) from error
        if not whole:
            raise DataLossError(f"file {path} has been altered", expected="its own checksum", actual="another one")
        version = readable_version(f"file {path}", content, range(1, VERSION + 1), FEATURES)
        try:
            return _manifest(content, version)
        except OpError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataLossError(
                f"file {path} is damaged", expected="a model's manifest", actual=brief(error)
            ) from error


def sealed(content: CheckpointManifest) -> bytes:
    """Return a JSON file with this content and its checksum."""
    text = json.dumps({**content, "sha256": digest_of(content)}, indent=1)
    return (_INNERMOST.sub(lambda found: _LINE.sub(" ", found[0]), text) + "\n").encode()


def _tensor_document(info: TensorInfo) -> CheckpointManifest:
    return {"name": info.name, "tensor": info.tensor, "dtype": info.dtype.name, "shape": info.shape}


def _described(variable: Weight) -> CheckpointManifest:
    return {**variable._asdict(), "dtype": variable.dtype.name}


# ── validation: each function raises ValueError, LookupError or TypeError for a malformed value ───────────────────────


def _manifest(content: CheckpointManifest, version: int) -> Manifest:
    weights = content.get("weights")
    return Manifest(
        {_text(name): _signature(each) for name, each in content["signatures"].items()},
        _file(content["graph"]),
        _file(content["ops"]),
        None if weights is None else _file(weights),
        _each(content["variables"], _weight, "name"),
        _each(content["assets"], _asset, "tensor"),
        _text(content["producer"]),
        version,
        tuple(_names(names) for names in content.get("replaced", ())),
        token_loop=_token_loop(content.get("token_loop")),
    )


def _token_loop(content: CheckpointManifest | None) -> TokenLoop | None:
    if content is None:
        return None
    lengths, prompt, encoding = (_text_or_none(content.get(key)) for key in ("lengths", "prompt", "encoding"))
    return TokenLoop(
        _text(content["tokens"]),
        _text(content["logits"]),
        _number(content["max_length"]),
        tuple(_token_state(each) for each in content["states"]),
        lengths,
        _text(content["step"]),
        prompt,
        _number_or_none(content.get("end_token")),
        encoding,
    )


def _token_state(item: CheckpointManifest) -> TokenState:
    rows, length = _number(item["row_axis"], 0), _number_or_none(item.get("length_axis"))
    return TokenState(_text(item["input"]), _text(item["output"]), rows, length)


def _signature(content: CheckpointManifest) -> StoredSignature:
    inputs, outputs = (_each(content[key], _tensor, "name") for key in ("inputs", "outputs"))
    return StoredSignature(inputs, outputs, _text(content.get("method", "")))


def _each(items: object, read: Callable[[CheckpointManifest], T], key: str) -> tuple[T, ...]:
    """Decode a list, and require that the names of its items are distinct."""
    if not isinstance(items, list):
        raise TypeError(f"not a list: {brief(items)}")
    found = tuple(read(item) for item in items)
    if len({getattr(item, key) for item in found}) < len(found):
        raise ValueError(f"a {key} comes twice")
    return found


def _tensor(item: CheckpointManifest) -> TensorInfo:
    return TensorInfo(_text(item["name"]), _text(item["tensor"]), _DTYPES[item["dtype"]], _shape(item["shape"]))


def _weight(item: CheckpointManifest) -> Weight:
    if type(item["trainable"]) is not bool:
        raise TypeError("trainable is neither true nor false")
    return Weight(_text(item["name"]), _DTYPES[item["dtype"]], _shape(item["shape"]), item["trainable"])


def _asset(item: CheckpointManifest) -> Asset:
    return Asset(_text(item["tensor"]), _file(item, f"{ASSETS}/"))


def _file(item: CheckpointManifest, folder: str = "") -> FileEntry:
    return FileEntry(_name(item["name"], folder), _number(item["size"], 0), _text(item["sha256"]))


def _name(value: object, folder: str = "") -> str:
    name = _text(value)
    plain = name.removeprefix(folder)
    if not name.startswith(folder) or not _NAME.fullmatch(plain) or plain in (".", "..") or plain == MANIFEST:
        raise ValueError(f"not the name of a file of the folder: {brief(name)}")
    return name


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise TypeError(f"not a list of names: {brief(value)}")
    assets = f"{ASSETS}/"
    return tuple(_name(name, assets if _text(name).startswith(assets) else "") for name in value)


def _shape(value: object) -> Dims:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > _MAX_RANK:
        raise ValueError(f"not a shape: {brief(value)}")
    return tuple(None if size is None else _number(size, 0) for size in value)


def _number(value: object, least: int = 1) -> int:
    # Not `isinstance`: a bool is an int, too.
    if type(value) is not int or not least <= value < 2**63:
        raise ValueError(f"not a number of at least {least}: {brief(value)}")
    return value


def _number_or_none(value: object) -> int | None:
    return None if value is None else _number(value, 0)


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not text: {brief(value)}")
    return value
