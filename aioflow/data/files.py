"""Datasets of the records of files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aioflow.data.building import traced
from aioflow.data.dataset import Dataset, whole
from aioflow.graph import dtypes
from aioflow.ops.apply import TensorLike, convert_to_tensor
from aioflow.ops.function.tracing import TensorSpec

__all__ = ["FixedLengthRecordDataset", "TFRecordDataset", "TextLineDataset"]


class _FileDataset(Dataset):
    """A dataset of the records of files."""

    def __init__(
        self, kind: str, filenames: Any, compression_type: Any, settings: Sequence[Any], name: str | None
    ) -> None:
        line = TensorSpec((), dtypes.string)
        compression = "" if compression_type is None else compression_type
        rest = [convert_to_tensor(compression, dtypes.string), *map(whole, settings)]
        if isinstance(filenames, Dataset):
            made = traced(lambda name: Dataset(kind, line, args=[name, *rest]), [filenames.element_spec], kind)
            super().__init__("interleave", line, [filenames], [whole(1), whole(1)], traced=made, name=name)
        else:
            names = convert_to_tensor(filenames, dtypes.string)
            super().__init__(kind, line, args=[names, *rest], name=name)


class TFRecordDataset(_FileDataset):
    """A dataset of the records of TFRecord files.

    Args:
        filenames: A name, a vector of names, or a dataset of names.
        compression_type: "", "GZIP" or "ZLIB".
        buffer_size: Ignored, as the next one is.
        num_parallel_reads: Ignored; files are read one after the other.
        name: Name of the node.
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: TensorLike | None = None,
        buffer_size: TensorLike | None = None,
        num_parallel_reads: TensorLike | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__("tf_records", filenames, compression_type, (), name)


class TextLineDataset(_FileDataset):
    """A dataset of the lines of text files, without their ends. The arguments are those of `TFRecordDataset`."""

    def __init__(
        self,
        filenames: Any,
        compression_type: TensorLike | None = None,
        buffer_size: TensorLike | None = None,
        num_parallel_reads: TensorLike | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__("text_lines", filenames, compression_type, (), name)


class FixedLengthRecordDataset(_FileDataset):
    """A dataset of the records of files of fixed-length records.

    Args:
        filenames: A name, a vector of names, or a dataset of names.
        record_bytes: Size of a record.
        header_bytes, footer_bytes: Bytes to skip at the beginning and the end of each file.
        buffer_size: Ignored.
        compression_type: "", "GZIP" or "ZLIB".
        num_parallel_reads: Ignored.
        name: Name of the node.
    """

    def __init__(
        self,
        filenames: Any,
        record_bytes: TensorLike,
        header_bytes: TensorLike | None = None,
        footer_bytes: TensorLike | None = None,
        buffer_size: TensorLike | None = None,
        compression_type: TensorLike | None = None,
        num_parallel_reads: TensorLike | None = None,
        name: str | None = None,
    ) -> None:
        settings = (header_bytes or 0, record_bytes, footer_bytes or 0)
        super().__init__("fixed_length_records", filenames, compression_type, settings, name)
