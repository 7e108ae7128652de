"""`Saver`: writes variables to checkpoints and reads them back, through Save and Restore nodes in the graph.

A checkpoint holds snapshots, so training continues while a thread writes it. Where the moment of the snapshot matters,
taking and writing it are separate steps (`Saver.snapshot`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import closing
from functools import partial
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from aioflow.arguments import check_kind, check_list, check_number
from aioflow.concurrency.threads import in_thread
from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.graph.default_graph import default_graph
from aioflow.graph.default_session import check_session
from aioflow.graph.graph import Operation, Tensor
from aioflow.ops.lookup.mutable import MutableHashTable
from aioflow.ops.variables.partitioned import PartitionedVariable
from aioflow.ops.variables.variable import Variable
from aioflow.protos import Message, enum, message
from aioflow.session.session import Session
from aioflow.train.checkpoint_state import (
    CheckpointState,
    UnlistedCheckpoint,
    checkpoint_exists,
    folder_of,
    get_checkpoint_mtimes,
    remove_checkpoint,
    update_checkpoint_state,
)
from aioflow.train.meta_graph import GraphBeside, export_meta_graph
from aioflow.train.saved_variables import saved_variables
from aioflow.train.saver_nodes import CheckpointFormat, SaverNodes, restored_variables

Saveable: TypeAlias = Variable | PartitionedVariable | MutableHashTable
StepNumber: TypeAlias = int | Variable | Tensor | np.integer[Any] | None

_HOUR: Final = 3600.0
_GRAPH: Final = "meta"  # suffix of the graph's file


class _Place(NamedTuple):
    """The files of one checkpoint.

    Attributes:
        prefix: Prefix of the checkpoint.
        latest_filename: Name of the state file; None for the default.
        write_state: Whether the state file lists the checkpoint.
        graph_suffix: Suffix of the graph's file.
        write_graph: Whether to write the graph's file.
        strip_default_attrs: Whether to leave out attributes with default values from it.
    """

    prefix: str
    latest_filename: str | None
    write_state: bool
    graph_suffix: str
    write_graph: bool
    strip_default_attrs: bool

    @property
    def graph(self) -> str:
        """Path of the graph's file."""
        return f"{self.prefix}.{self.graph_suffix}"


class _Kept(NamedTuple):
    """The checkpoints that a saver keeps.

    Attributes:
        checkpoints: Prefixes and times of writing, oldest first.
        until: A displaced checkpoint that was written after this time is kept permanently.
        doomed: Prefixes that are no longer kept but not deleted yet.
    """

    checkpoints: list[tuple[str, float]]
    until: float
    doomed: list[str]

    def adding(self, prefix: str, now: float, most: int, seconds: float) -> _Kept:
        """Return the state after a new checkpoint: at most `most` recent ones, plus one per `seconds` permanently.

        If `most` is 0, all checkpoints are kept and none is recorded.
        """
        if not most:
            return self
        # A checkpoint written again is the newest and counts once.
        kept = [*(entry for entry in self.checkpoints if entry[0] != prefix), (prefix, now)]
        # A checkpoint that was to be deleted and is written again must stay.
        doomed = [other for other in self.doomed if other != prefix]
        if len(kept) <= most:
            return _Kept(kept, self.until, doomed)
        (oldest, written), *kept = kept
        # Kept permanently: it leaves the list but is not doomed.
        if written > self.until:
            return _Kept(kept, self.until + seconds, doomed)
        return _Kept(kept, self.until, [*doomed, oldest])


class Saver:
    """A writer and reader of checkpoints of variables and mutable tables.

    Args:
        var_list: Variables and tables, as a list (saved under their names) or as a dict from names to them; by default
            all global variables of the graph, and its mutable tables. The parts of a partitioned variable are saved as
            one tensor under the name of the whole, and can be restored into another number of parts. In a dict, this
            applies to a PartitionedVariable and to a list of parts.
        reshape: Restore into variables of a different shape with the same number of elements.
        max_to_keep: Number of the newest checkpoints to keep; 0 or None keeps all.
        keep_checkpoint_every_n_hours: Interval at which one more checkpoint is kept permanently.
        name: Prefix of the nodes' names.
        restore_sequentially: Assign the variables one after the other.
        defer_build: Create the nodes at the first `build`, `save` or `restore`, for the variables that exist then.
            `var_list` must be None.
        allow_empty: Accept a graph without variables; saving and restoring then do nothing.
        pad_step_number: Write the step with eight digits, so that names sort.
        filename: Default value of the file name tensor.
        write_version: 2 for checkpoints in TensorFlow's version 2, which TensorFlow and aioflow read. By default
            checkpoints are `safetensors` files with a manifest, which is replaced atomically.
        saver_def, builder: Not supported; must be None.
        sharded, save_relative_paths: Ignored. There is one file with values; paths in the state file are relative to
            it.
        incremental: Write checkpoints in blocks of 128 KiB, and only those blocks that have changed since the last
            checkpoint that is kept. The other blocks are read from its files, which remain while a checkpoint refers to
            them. Suited to large embeddings with sparse updates. Only aioflow reads such checkpoints.
        clock: Function that returns the seconds since 1970.

    Raises:
        InvalidArgumentError: there are no variables; two have the same name; or two arguments exclude each other
            (`defer_build` and `var_list`, `incremental` and `write_version`).
        UnimplementedError: `write_version` is neither None nor 2, or `saver_def` or `builder` is given.
    """

    def __init__(
        self,
        var_list: Sequence[Saveable] | Mapping[str, Saveable | Sequence[Variable]] | None = None,
        reshape: bool = False,
        sharded: bool = False,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        name: str | None = None,
        restore_sequentially: bool = False,
        saver_def: None = None,
        builder: None = None,
        defer_build: bool = False,
        allow_empty: bool = False,
        write_version: int | None = None,
        pad_step_number: bool = False,
        save_relative_paths: bool = False,
        filename: str | None = None,
        *,
        incremental: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        for other in (saver_def, builder):
            if other is not None:
                raise UnimplementedError(
                    "saver_def and builder are not supported", expected="var_list", actual="one of them"
                )
        if defer_build and var_list:
            raise InvalidArgumentError(
                "a deferred saver takes the variables of its build", expected="var_list=None", actual="a list"
            )
        self._var_list = var_list
        self._reshape = reshape
        check_kind(max_to_keep, (int, NoneType), "max_to_keep", "an int, or None for all")
        self._max_to_keep = max_to_keep or 0
        check_number(keep_checkpoint_every_n_hours, "keep_checkpoint_every_n_hours", "a number of hours")
        self._keep_seconds = keep_checkpoint_every_n_hours * _HOUR
        # Wall-clock time: it is compared with times that earlier runs have stored.
        self._clock = clock or time.time
        self._form = _form(write_version, incremental)
        self._base = ""  # the checkpoint that the next incremental one may refer to
        # Saves of one saver run one after the other: each changes the list of kept checkpoints.
        self._turn = asyncio.Lock()
        self._name = name or "save"
        self._sequential = restore_sequentially
        self._allow_empty = allow_empty
        self._pad = pad_step_number
        self._filename = filename or "model"
        self._kept = _Kept([], self._clock() + self._keep_seconds, [])
        self._nodes: SaverNodes | None = None
        self._is_empty = False
        if not defer_build:
            self.build()

    def build(self) -> None:
        """Create the nodes, unless they exist."""
        if self._nodes is not None or self._is_empty:
            return
        variables = saved_variables(self._var_list)
        if not variables:
            if not self._allow_empty:
                raise InvalidArgumentError(
                    "there are no variables to save", expected="at least one, or allow_empty", actual=0
                )
            self._is_empty = True
            return
        self._nodes = SaverNodes(self._name, variables, self._filename, self._reshape, self._sequential, self._form)
        # A function: the definition is made only when a checkpoint with a graph is written.
        export = partial(self.export_meta_graph, None, None, False, None, False, False)
        self._beside = GraphBeside(self._nodes.restored.graph, export)

    def _built(self) -> SaverNodes | None:
        self.build()
        return self._nodes

    # -- TensorFlow's published form --------------------------------------------------------------------------------

    def as_saver_def(self) -> Message:
        """Return the `SaverDef` message, which names the nodes to feed and run, or None if there is nothing to save."""
        nodes = self._built()
        if nodes is None:
            return None
        made = message("SaverDef")(
            filename_tensor_name=nodes.filename.name,
            save_tensor_name=nodes.saved.name,
            restore_op_name=nodes.restored.name,
            max_to_keep=self._max_to_keep,
            keep_checkpoint_every_n_hours=self._keep_seconds / _HOUR,
        )
        made.version = enum("SaverDef.CheckpointFormatVersion").Value("V2")
        return made

    def to_proto(self, export_scope: None = None) -> Message:
        """Return the `SaverDef` message."""
        return self.as_saver_def()

    @staticmethod
    def from_proto(saver_def: Message, import_scope: str | None = None) -> Saver:
        """Return a saver for the variables of a stored saver; its nodes are new.

        Args:
            saver_def: Message of the stored saver.
            import_scope: Name scope into which the stored graph was imported.

        Raises:
            NotFoundError: the graph lacks the message's restore node.
        """
        scope = f"{import_scope.removesuffix('/')}/" if import_scope else ""
        variables = restored_variables(default_graph().get_operation_by_name(scope + saver_def.restore_op_name))
        hours = saver_def.keep_checkpoint_every_n_hours or 10000.0
        return Saver(variables, False, False, saver_def.max_to_keep, hours, allow_empty=True)

    def export_meta_graph(
        self,
        filename: str | PathLike[str] | None = None,
        collection_list: Sequence[str] | None = None,
        as_text: bool = False,
        export_scope: None = None,
        clear_devices: bool = False,
        clear_extraneous_savers: bool = False,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> Message:
        """Return the graph with this saver as a `MetaGraphDef`. See `train.export_meta_graph`."""
        nodes = self._built()
        return export_meta_graph(
            filename,
            saver_def=self.as_saver_def(),
            collection_list=collection_list,
            as_text=as_text,
            graph=default_graph() if nodes is None else nodes.restored.graph,
            export_scope=export_scope,
            clear_devices=clear_devices,
            clear_extraneous_savers=clear_extraneous_savers,
            strip_default_attrs=strip_default_attrs,
        )

    # -- saving -----------------------------------------------------------------------------------------------------

    async def save(
        self,
        sess: Session,
        save_path: str | Path,
        global_step: StepNumber = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = _GRAPH,
        write_meta_graph: bool = True,
        write_state: bool = True,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> str | None:
        """Write a checkpoint, delete checkpoints that are no longer kept, and update the state file.

        On return the checkpoint is complete and the state file names it. A crash before that leaves the earlier ones
        intact. A save that fails or is cancelled leaves no file of the checkpoint, unless the state file already names
        it. In a local folder, the next save of the same run removes files left by killed processes. Saves of one saver
        are written one after the other.

        One step reads all values, when it is the save's turn. The values are consistent if no step that changes
        variables runs at that time. To save at a known step while training continues, take a `snapshot`.

        Args:
            sess: The session that holds the variables.
            save_path: Prefix of the files, including the directory; or a URL that `fsspec` knows.
            global_step: A number, a variable or a tensor, appended to the prefix as "-number".
            latest_filename: Name of the state file; "checkpoint" by default.
            meta_graph_suffix: Suffix of the graph's file.
            write_meta_graph: Write the graph beside the checkpoint, for `train.import_meta_graph`. It is deleted with
                the checkpoint. A graph that has no published form is left out, with a warning in the log.
            write_state: Whether the state file lists the checkpoint.
            strip_default_attrs: Leave attributes with default values out of the graph, for programs with older ops.
            save_debug_info: Part of the published signature.

        Returns:
            The prefix of the checkpoint, or None if there is nothing to save.

        Raises:
            InvalidArgumentError: `save_path` has no file name, or `latest_filename` is a path.
            FailedPreconditionError: a variable has no value.
            PermissionDeniedError, ResourceExhaustedError, …: the file system refuses; the error names the file.
            UnimplementedError: `fsspec` is not installed: `pip install 'aioflow-engine[fsspec]'`.
        """
        nodes = self._checked(sess, save_path, latest_filename)
        if nodes is None:
            return None
        # Outside of the turn: the step's number is read when the caller asks, not after earlier saves.
        prefix = await self._prefix(sess, str(save_path), global_step)
        graph = meta_graph_suffix, write_meta_graph, strip_default_attrs
        await self._write(
            sess, nodes.saved, {nodes.filename: prefix}, _Place(prefix, latest_filename, write_state, *graph)
        )
        return prefix

    async def snapshot(
        self,
        sess: Session,
        save_path: str | Path,
        global_step: StepNumber = None,
        latest_filename: str | None = None,
        write_state: bool = True,
        *,
        write_meta_graph: bool = True,
    ) -> PendingCheckpoint | None:
        """Take a snapshot of the current values in one step; `await taken.write()` writes it at any later time.

        If only the caller's own steps change variables, and it has awaited them, the snapshot lies exactly between two
        steps. Nothing is copied, so this takes no longer than a small step, except that values are sent to the task
        that writes them if that is another one. Memory is needed for values that later steps change before the snapshot
        is written. A worker keeps the last two unwritten snapshots of a saver.

        Arguments and errors are those of `save`, but `write` raises the errors of the file system.
        """
        nodes = self._checked(sess, save_path, latest_filename)
        if nodes is None:
            return None
        prefix = await self._prefix(sess, str(save_path), global_step)
        place = _Place(prefix, latest_filename, write_state, _GRAPH, write_meta_graph, False)
        # A random key: several programs may hold snapshots on one worker.
        key = secrets.token_hex(8)
        # This step decides the contents; the write may come at any later time.
        await sess.run(nodes.hold, {nodes.key: key})
        write = partial(self._write, sess, nodes.written, {nodes.filename: place.prefix, nodes.key: key}, place)
        return PendingCheckpoint(place.prefix, write)

    def _checked(self, sess: object, save_path: object, latest_filename: str | None) -> SaverNodes | None:
        nodes = self._built()
        _check_place(sess, save_path)
        # A path would put the state file into a folder other than the checkpoint's.
        if latest_filename is not None and Path(latest_filename).name != latest_filename:
            raise InvalidArgumentError(
                "latest_filename must be a name, not a path", expected="no directories", actual=latest_filename
            )
        return nodes

    async def _write(self, sess: Session, node: Tensor | Operation, feeds: dict[object, object], place: _Place) -> None:
        async with self._turn:
            unlisted = UnlistedCheckpoint(place.prefix, place.latest_filename, place.graph_suffix, place.write_state)
            try:
                # Critical: a cancellation waits for the thread, whose half-done work could not be undone.
                await in_thread(unlisted.begin, self.last_checkpoints, critical=True)
                nodes = self._built()
                if nodes is not None and self._form is CheckpointFormat.BLOCKS:
                    # Read in turn: the save before this one has changed the base.
                    feeds = {**feeds, nodes.base: self._base}
                await sess.run(node, feeds)
            except BaseException:  # also a cancellation: no half-written checkpoint may remain
                await in_thread(unlisted.abandon, critical=True)
                raise
            # Also critical: the state file and the list of kept checkpoints change together.
            await in_thread(self._finish, place, unlisted, critical=True)

    async def _prefix(self, sess: Session, save_path: str, global_step: Any) -> str:
        if not Path(save_path).name or save_path.endswith("/"):
            raise InvalidArgumentError("the path has no file name", expected="directory/prefix", actual=save_path)
        if global_step is None:
            return save_path
        if not isinstance(global_step, int | np.integer):
            global_step = await sess.run(global_step)
        return f"{save_path}-{int(global_step):08d}" if self._pad else f"{save_path}-{int(global_step)}"

    def _finish(self, place: _Place, unlisted: UnlistedCheckpoint) -> None:
        """List a complete checkpoint, or remove it if that fails; delete checkpoints no longer kept. Blocks."""
        # A new value, stored only after the state file is written: if that fails, the list stays as it was.
        kept = self._kept.adding(place.prefix, self._clock(), self._max_to_keep, self._keep_seconds)
        try:
            if place.write_graph:
                self._beside.write(place.graph, place.strip_default_attrs)
            # Marked before the state file drops them: a crash in between would leave files that nothing names.
            unlisted.mark(kept.doomed)
            if place.write_state:
                paths, times = [path for path, _ in kept.checkpoints], [time for _, time in kept.checkpoints]
                update_checkpoint_state(folder_of(place.prefix), place.prefix, paths, place.latest_filename, times)
        except BaseException:
            unlisted.abandon()
            raise
        with closing(unlisted):
            self._base, self._kept = place.prefix, kept
            while kept.doomed:  # after the state file is written, which must never name a deleted checkpoint
                remove_checkpoint(kept.doomed[0], meta_graph_suffix=place.graph_suffix)
                # One by one: if a removal fails, the rest stays doomed and the next save tries again.
                del kept.doomed[0]

    # -- restoring --------------------------------------------------------------------------------------------------

    async def restore(self, sess: Session, save_path: str | Path) -> None:
        """Assign the values of a checkpoint to the variables. If this fails, no variable has changed.

        `save_path` is the result of `save`, the prefix of a TensorFlow checkpoint, or the full name of a `.safetensors`
        file.

        Raises:
            NotFoundError: there is no such checkpoint, or it lacks variables; the error names them.
            InvalidArgumentError: a shape differs, or `save_path` is empty.
            DTypeError: a dtype differs.
            DataLossError: a file is truncated or altered; the error names it.
        """
        nodes = self._built()
        if nodes is None:
            return
        if not save_path:
            raise InvalidArgumentError("there is no checkpoint to restore", expected="a path", actual=save_path)
        _check_place(sess, save_path)
        path = str(save_path)
        # Everything is checked before the first assignment, so that a failure leaves all variables unchanged.
        # Reading has no effects, so a cancelled caller need not wait for the thread.
        await in_thread(nodes.check, path, self._reshape, effects=False)
        await sess.run(nodes.restored, {nodes.filename: path})
        # The variables now equal this checkpoint, so the next incremental one may refer to its blocks.
        self._base = path

    # -- retention --------------------------------------------------------------------------------------------------

    @property
    def last_checkpoints(self) -> list[str]:
        """Prefixes of the recorded checkpoints, oldest first. If all are kept, new ones are not recorded."""
        return [path for path, _ in self._kept.checkpoints]

    def set_last_checkpoints(self, last_checkpoints: Sequence[str]) -> None:
        """Set the list of existing checkpoints, oldest first, with the current time as their time of writing."""
        check_list(last_checkpoints, "the checkpoints")
        self.set_last_checkpoints_with_time([(path, self._clock()) for path in last_checkpoints])

    def set_last_checkpoints_with_time(self, last_checkpoints_with_time: Sequence[tuple[str, float]]) -> None:
        """Set the list of existing checkpoints, oldest first, with their times of writing."""
        kept = [(str(path), float(written)) for path, written in last_checkpoints_with_time]
        self._kept = self._kept._replace(checkpoints=kept)

    def recover_last_checkpoints(self, checkpoint_paths: Sequence[str] | CheckpointState) -> None:
        """Set the list of checkpoints from an earlier run; missing checkpoints are left out. Blocks on the files."""
        if isinstance(checkpoint_paths, CheckpointState):
            checkpoint_paths = checkpoint_paths.all_model_checkpoint_paths
        existing = [str(path) for path in checkpoint_paths if checkpoint_exists(str(path))]
        self.set_last_checkpoints_with_time(
            # The file's own time; the current one where a store has none.
            [(path, next(iter(get_checkpoint_mtimes([path])), self._clock())) for path in existing]
        )
        # The newest existing checkpoint: its blocks are on disk.
        self._base = existing[-1] if existing else self._base


def _form(write_version: int | None, incremental: bool) -> CheckpointFormat:
    check_kind(write_version, (int, NoneType), "write_version", "2, or None for a format of our own")
    if write_version is None:
        return CheckpointFormat.BLOCKS if incremental else CheckpointFormat.FILE
    if incremental:
        raise InvalidArgumentError(
            "checkpoints in blocks are of a format of our own", expected="write_version=None", actual=write_version
        )
    if write_version != 2:
        raise UnimplementedError(
            "of TensorFlow's checkpoints version 2 is written; version 1 is read alone",
            expected=2,
            actual=write_version,
        )
    return CheckpointFormat.BUNDLE


def _check_place(session: object, path: object) -> None:
    check_session(session)
    check_kind(path, (str, PathLike), "the path of a checkpoint", "a str or a path")


class PendingCheckpoint:
    """A snapshot to be written.

    Attributes:
        prefix: Prefix of the future checkpoint.
    """

    def __init__(self, prefix: str, write: Callable[[], Coroutine[object, object, None]]) -> None:
        self.prefix = prefix
        self._write = write

    async def write(self) -> str:
        """Write the snapshot, once, finish as `Saver.save` does, and return the prefix.

        Raises:
            AbortedError: the snapshot has been written before, or later snapshots have displaced it.
            PermissionDeniedError, ResourceExhaustedError, …: as `Saver.save`.
        """
        await self._write()
        return self.prefix
