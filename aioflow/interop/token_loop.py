"""Checks that the declaration of a loop over tokens fits the signatures of its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aioflow.arguments import check_kind, check_whole
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.interop.model import Signature, TokenLoop, TokenState

UTF8: Final = "utf-8"


def check_token_loop(loop: TokenLoop, signatures: Mapping[str, Signature]) -> None:
    """Raise InvalidArgumentError if the declaration does not fit the signatures of a model."""
    check_whole(loop.max_length, "max_length of a token loop", 1)
    check_kind(loop.states, tuple, "the states of a token loop", "a tuple of TokenState")
    for state in loop.states:
        check_kind(state, TokenState, "a state of a token loop", "a TokenState")
    if loop.encoding not in (None, UTF8):
        raise InvalidArgumentError(
            "the encoding of a token loop is unknown", expected="'utf-8' or None", actual=loop.encoding
        )
    for name in dict.fromkeys((loop.step, loop.prompt or loop.step)):
        if name not in signatures:
            raise _unfit(f"signature {name!r}", f"one of {sorted(signatures)}")
        _check_signature(loop, signatures[name], name == loop.step)
    vocabulary = vocabulary_of(loop, signatures)
    least = 256 if loop.encoding == UTF8 else 1
    if vocabulary < least:
        raise _unfit(f"{vocabulary} logits", f"at least {least}")
    if loop.end_token is not None:
        check_whole(loop.end_token, "end_token of a token loop", 0)
        if loop.end_token >= vocabulary:
            raise _unfit(f"end_token {loop.end_token}", f"a token below {vocabulary}")


def vocabulary_of(loop: TokenLoop, signatures: Mapping[str, Signature]) -> int:
    """Return the number of tokens of the vocabulary."""
    dims = signatures[loop.step].outputs[loop.logits].dims or ()
    return dims[-1] or 0 if dims else 0


def _check_signature(loop: TokenLoop, signature: Signature, is_step: bool) -> None:
    inputs = {loop.tokens, *(state.input for state in loop.states), *([loop.lengths] if loop.lengths else [])}
    outputs = {loop.logits, *(state.output for state in loop.states)}
    if set(signature.inputs) != inputs or not outputs <= set(signature.outputs):
        raise _unfit(f"{sorted(signature.inputs)} → {sorted(signature.outputs)}", f"{inputs} → {outputs}")
    rows: set[int | None] = {None} if is_step else {None, 1}
    integers = [(loop.tokens, 2), *([(loop.lengths, 1)] if loop.lengths else [])]
    for name, rank in integers:
        dims, dtype = signature.inputs[name].dims, signature.inputs[name].dtype
        if dtype not in (dtypes.int32, dtypes.int64) or dims is None or len(dims) != rank or dims[0] not in rows:
            raise _unfit(f"input {name!r}: {dtype.name} {dims}", f"int32 or int64 of {rank} axes, any rows")
    counts = (signature.inputs[loop.tokens].dims or (None,))[-1]
    if counts not in (None, 1):
        raise _unfit(f"{counts} tokens a row", "one token, or any number")
    logits = signature.outputs[loop.logits]
    if not logits.dtype.is_floating or logits.dims is None or len(logits.dims) != 2 or logits.dims[0] not in rows:
        raise _unfit(f"output {loop.logits!r}: {logits.dtype.name} {logits.dims}", "floats [rows, vocabulary]")
    for state in loop.states:
        _check_state(state, signature, rows)


def _check_state(state: TokenState, signature: Signature, rows: set[int | None]) -> None:
    before, after = signature.inputs[state.input], signature.outputs[state.output]
    dims, length = before.dims, state.length_axis
    axes = [state.row_axis] if length is None else [state.row_axis, length]
    fits = (
        before.dtype is after.dtype
        and dims is not None
        and after.dims is not None
        and len(dims) == len(after.dims)
        and len(set(axes)) == len(axes)
        and all(type(axis) is int and 0 <= axis < len(dims) for axis in axes)
        and dims[state.row_axis] in rows
        and (length is None or dims[length] is None)
        and all(size is not None for axis, size in enumerate(dims) if axis not in axes)
    )
    if not fits:
        raise _unfit(
            f"state {state.input!r}: {before.dtype.name} {dims} → {after.dtype.name} {after.dims}",
            "one dtype and rank, and no unknown size but those of rows and tokens",
        )


def _unfit(actual: str, expected: str) -> InvalidArgumentError:
    return InvalidArgumentError("the token loop does not fit the model", expected=expected, actual=actual)
