"""The file of the weights in a folder: values of variables, and large constants, each compared with its digest."""

from __future__ import annotations

import hashlib
from pathlib import Path

from aioflow.errors import DataLossError, OpError
from aioflow.formats.checkpoint import CheckpointReader
from aioflow.formats.manifests import MANIFEST as CHECKPOINT_MANIFEST
from aioflow.formats.manifests import files_of, read_manifest
from aioflow.formats.tensor_file import TensorFile
from aioflow.graph.arrays import Array
from aioflow.interop import safetensors
from aioflow.saved.manifest import StoredFile
from aioflow.saved.places import Place

__all__ = ["StoredWeights"]


class StoredWeights:
    """The checkpoint of a folder, whose manifest is as it was written, and whose files are in the folder.

    Attributes:
        prefix: The full name of the checkpoint.

    Raises:
        OpError: as `Place.read`; it leads out of the folder, is damaged, or needs a later release.
    """

    def __init__(self, place: Place, weights: StoredFile) -> None:
        place.check(weights)
        self._place, self._weights = place, weights
        self._constants: TensorFile | CheckpointReader | None = None
        self._store, self._name = place.store(weights.name.removesuffix(CHECKPOINT_MANIFEST))
        self.prefix = place.path(weights.name.removesuffix(CHECKPOINT_MANIFEST))
        try:
            for file in files_of(read_manifest(self._store, self._name)):
                place.check_inside(file)
        except ValueError as error:
            if isinstance(error, OpError):
                raise
            raise DataLossError(f"{self.prefix} is damaged", expected="a checkpoint", actual=str(error)) from error

    def constant(self, name: str) -> Array:
        """A constant: over the mapped file, or in memory of its own where there is nothing to map.

        Raises:
            NotFoundError: there is none of that name.
            DataLossError: its bytes are not those that were written.
        """
        if self._constants is None:
            self._constants = self._mapped() or CheckpointReader(self.prefix)
        if isinstance(self._constants, CheckpointReader):
            return self._constants.read(name)
        self._constants.check(name)
        return self._constants.map(name)

    def values(self, names: list[str]) -> safetensors.Weights | None:
        """The values of variables over the mapped file, as it is now; None where there is nothing to map.

        Raises:
            DataLossError: the files have changed since the model was loaded.
        """
        self._place.check(self._weights)
        file = self._mapped()
        if file is None:
            return None
        for name in names:
            file.check(name)
        return safetensors.Weights({str(file.path): file}, dict.fromkeys(names, file))

    def _mapped(self) -> TensorFile | None:
        """The file, whose header is as it was written; None in a store, and where the values are in blocks."""
        if self._place.is_remote:
            return None
        manifest = read_manifest(self._store, self._name)
        if manifest["version"] != 1:
            return None
        file = TensorFile(Path(f"{self.prefix}.safetensors"))
        digest = hashlib.sha256(file.header).hexdigest()
        if digest != manifest["header_sha256"]:
            raise DataLossError(f"file {file.path} has changed", expected=manifest["header_sha256"], actual=digest)
        return file
