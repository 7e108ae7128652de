"""The weights of a model folder: values of variables, and large constants, each verified against its digest."""

from __future__ import annotations

from aioflow.errors import DataLossError, OpError
from aioflow.formats.checkpoint import CheckpointReader, data_file
from aioflow.formats.manifests import MANIFEST as CHECKPOINT_MANIFEST
from aioflow.formats.manifests import files_of, read_manifest
from aioflow.interop import safetensors
from aioflow.memory.values import Array
from aioflow.saved.manifest import FileEntry
from aioflow.saved.places import ModelFolder


class StoredWeights:
    """The checkpoint of a folder. Its manifest is verified, and its files are inside the folder.

    A local file is mapped by the constructor: the values stay valid if the file is replaced or deleted.

    Attributes:
        prefix: The full name of the checkpoint.

    Raises:
        OpError: as for `ModelFolder.read`; a file leads out of the folder, is damaged, or needs a later release.
    """

    def __init__(self, place: ModelFolder, weights: FileEntry) -> None:
        # First the digest of the manifest, then what it says about the files.
        place.check(weights)
        self._reader: CheckpointReader | None = None
        self._store, self._name = place.store(weights.name.removesuffix(CHECKPOINT_MANIFEST))
        self.prefix = place.path(weights.name.removesuffix(CHECKPOINT_MANIFEST))
        manifest = read_manifest(self._store, self._name)
        try:
            for file in files_of(manifest):
                place.check_inside(file)
        except ValueError as error:
            if isinstance(error, OpError):
                raise
            raise DataLossError(f"{self.prefix} is damaged", expected="a checkpoint", actual=str(error)) from error
        # None in a store, and for a checkpoint with values in blocks.
        self._file = None if place.is_remote or manifest["version"] != 1 else data_file(self.prefix, manifest)
        if self._file is not None:
            # While the version is known to exist: a mapped file outlives its deletion.
            self._file.map_whole()

    def are_there(self) -> bool:
        """Return True if the checkpoint has not been deleted."""
        return self._store.size(self._name + CHECKPOINT_MANIFEST) is not None

    def constant(self, name: str) -> Array:
        """Return a constant, as an array over the mapped file, or in separate memory if no file is mapped.

        Raises:
            NotFoundError: there is no constant of that name.
            DataLossError: the bytes are not those that were written.
        """
        if self._file is not None:
            self._file.check(name)
            return self._file.map(name)
        self._reader = self._reader or CheckpointReader(self.prefix)
        return self._reader.read(name)

    def values(self, names: list[str]) -> safetensors.Weights | None:
        """Return the values of variables as arrays over the mapped file, or None if no file is mapped.

        Raises:
            DataLossError: the file has been changed since it was written.
        """
        if self._file is None:
            return None
        for name in names:
            self._file.check(name)
        return safetensors.Weights({str(self._file.path): self._file}, dict.fromkeys(names, self._file))
