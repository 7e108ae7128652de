"""The checkpoint manifest, `PREFIX.manifest.json`: a checkpoint exists only if its manifest does.

Version 1 describes one file with all values. Version 2 describes values in blocks, which may be in files of earlier
checkpoints. `formats/versions.py` states which versions can be read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from types import UnionType
from typing import Any, Final, TypeAlias

from aioflow.errors import DataLossError, NotFoundError, OpError, UnknownNameError
from aioflow.formats.stores import Store
from aioflow.formats.tensor_encoding import Storable
from aioflow.formats.versions import readable_version
from aioflow.graph.dtypes import as_dtype

MANIFEST: Final = ".manifest.json"
_FORMAT: Final = "aioflow.checkpoint"
_STEP: Final = re.compile(r"-(\d+)$")
CheckpointManifest: TypeAlias = dict[str, Any]  # an object of JSON

_KINDS: Final[Mapping[int, Mapping[str, type | UnionType]]] = {
    1: {"version": int, "size": int, "header_sha256": str, "step": int | None},
    2: {"version": int, "block": int, "files": list, "tensors": dict, "step": int | None},
}

_MISSING: Final = object()


def step_of(prefix: str) -> int | None:
    """Return the step number that a prefix ends in, or None if it has none."""
    found = _STEP.search(prefix)
    return int(found[1]) if found else None


def family_of(name: str) -> str:
    """Return a regular expression for the names of all checkpoints of one run.

    It matches `name` with any step number, and without one.
    """
    return rf"{re.escape(_STEP.sub('', name))}(?:-\d+)?"


def described(value: Storable) -> CheckpointManifest:
    """Return the dtype and shape of a tensor."""
    return {"dtype": as_dtype(value.dtype).name, "shape": list(value.shape)}


def sealed(content: CheckpointManifest) -> bytes:
    """Return a manifest with this content and its checksum, encoded as JSON."""
    whole = {"format": _FORMAT, **content}
    return (json.dumps(whole | {"sha256": digest_of(whole)}, indent=1, sort_keys=True) + "\n").encode()


def digest_of(content: CheckpointManifest) -> str:
    """Return the checksum of a manifest's content."""
    # With sorted keys, since the order of a JSON object has no meaning.
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_manifest(store: Store, name: str) -> CheckpointManifest:
    """Read and verify the manifest of a checkpoint.

    Returns:
        The content of the manifest. `version` is the format version by whose rules to read it.

    Raises:
        NotFoundError: there is no such checkpoint.
        DataLossError: the manifest is damaged.
        UnimplementedError: only a later release can read the manifest.
    """
    path, prefix = store.path(name + MANIFEST), store.path(name)
    try:
        raw = store.read(name + MANIFEST)
    except NotFoundError as error:
        raise UnknownNameError(
            f"there is no checkpoint {prefix}",
            expected=f"a file {path}, or {prefix}.index or {prefix} of TensorFlow's",
            actual="none",
        ) from error
    try:
        content: CheckpointManifest = json.loads(raw)
        digest = content.pop("sha256")
        valid = content["format"] == _FORMAT and digest == digest_of(content)
        numbered = type(content["version"]) is int and content["version"] >= 1
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataLossError(f"file {path} is damaged", expected="a manifest", actual=str(error)) from error
    if not valid:
        raise DataLossError(f"file {path} has been altered", expected="its own checksum", actual="another one")
    wrong = "version"
    if numbered:
        content["version"] = readable_version(f"file {path}", content, _KINDS)
        kinds = _KINDS[content["version"]]
        wrong = next((key for key, kind in kinds.items() if not isinstance(content.get(key, _MISSING), kind)), "")
    if wrong:
        raise DataLossError(f"file {path} is damaged", expected="a manifest", actual=f"{wrong} of a different kind")
    return content


def files_of(manifest: CheckpointManifest) -> list[str]:
    """Return the names of the files that a manifest refers to, without the manifest itself.

    Raises:
        ValueError: a name is not the plain name of a file in the same folder.
        LookupError, TypeError: the manifest lacks the names, or they have another form.
    """
    found = [file["name"] for file in manifest["files"]] if manifest["version"] == 2 else [manifest.get("file", "")]
    for name in found:
        if type(name) is not str or re.search(r"[/\\\0]", name) or name in ("", ".", ".."):
            raise ValueError(f"not a file's name: {name!r}")
    return found


def referenced_files(store: Store) -> set[str] | None:
    """Return the names of all files that the manifests of a folder refer to, or None if a manifest cannot be read."""
    found: set[str] = set()
    for name in store.names():
        if name.endswith(MANIFEST) and not name.startswith("."):
            # Without the content of every manifest, no file is known to be unused: the caller must not delete any.
            try:
                found.update(files_of(read_manifest(store, name.removesuffix(MANIFEST))))
            except NotFoundError:  # deleted since the folder was listed
                continue
            except (OpError, ValueError, LookupError, TypeError):
                return None
    return found
