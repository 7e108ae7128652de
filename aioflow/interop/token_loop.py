"""The declaration that a signature is one step of a loop over tokens, so that a server can generate streams with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aioflow.arguments import check_kind, check_whole
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes

if TYPE_CHECKING:
    from aioflow.interop.model import Signature

UTF8: Final = "utf-8"


@dataclass(frozen=True, slots=True)
class TokenState:
    """A tensor that each step returns and the next step is fed, such as cached keys and values.

    Attributes:
        input, output: Its names in the signature.
        row_axis: The axis of the streams.
        length_axis: The axis of the tokens, if the output has the entries of the new tokens only, and the input those
            of all past tokens. None if the output replaces the input.
    """

    input: str
    output: str
    row_axis: int = 0
    length_axis: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLoop:
    """A loop over tokens: each step reads new tokens of some streams and returns the logits of the following ones.

    A step must treat its rows separately. It must ignore the entries of a state beyond the length of its stream.

    Attributes:
        tokens: Input with the new tokens: integers [rows, tokens].
        logits: Output with the logits of the token after the last: floats [rows, vocabulary].
        max_length: Maximum number of tokens of a stream, with its prompt.
        states: The states. They are zeros at the begin of a stream.
        lengths: Input with the number of past tokens of each stream: integers [rows]; None if there is no such input.
        step: Signature that reads one token of each of any number of streams.
        prompt: Signature that reads any number of tokens of one stream, with the names of `step`; None for `step`.
        end_token: The token that ends a stream, if any.
        encoding: "utf-8" if the tokens below 256 are the bytes of a text, None if the model has no text.
    """

    tokens: str
    logits: str
    max_length: int
    states: tuple[TokenState, ...] = ()
    lengths: str | None = None
    step: str = "serving_default"
    prompt: str | None = None
    end_token: int | None = None
    encoding: str | None = None

    def check(self, signatures: Mapping[str, Signature]) -> None:
        """Raise InvalidArgumentError if the declaration does not fit the signatures of a model."""
        check_whole(self.max_length, "max_length of a token loop", 1)
        check_kind(self.states, tuple, "the states of a token loop", "a tuple of TokenState")
        if self.encoding not in (None, UTF8):
            raise InvalidArgumentError(
                "the encoding of a token loop is unknown", expected="'utf-8' or None", actual=self.encoding
            )
        for name in dict.fromkeys((self.step, self.prompt or self.step)):
            if name not in signatures:
                raise _unfit(f"signature {name!r}", f"one of {sorted(signatures)}")
            self._check_signature(signatures[name], name == self.step)
        vocabulary = self.vocabulary(signatures)
        least = 256 if self.encoding == UTF8 else 1
        if vocabulary < least:
            raise _unfit(f"{vocabulary} logits", f"at least {least}")
        if self.end_token is not None:
            check_whole(self.end_token, "end_token of a token loop", 0)
            if self.end_token >= vocabulary:
                raise _unfit(f"end_token {self.end_token}", f"a token below {vocabulary}")

    def vocabulary(self, signatures: Mapping[str, Signature]) -> int:
        """Return the number of tokens of the vocabulary."""
        dims = signatures[self.step].outputs[self.logits].dims or ()
        return dims[-1] or 0 if dims else 0

    def _check_signature(self, signature: Signature, is_step: bool) -> None:
        inputs = {self.tokens, *(state.input for state in self.states), *([self.lengths] if self.lengths else [])}
        outputs = {self.logits, *(state.output for state in self.states)}
        if set(signature.inputs) != inputs or not outputs <= set(signature.outputs):
            raise _unfit(f"{sorted(signature.inputs)} → {sorted(signature.outputs)}", f"{inputs} → {outputs}")
        rows: set[int | None] = {None} if is_step else {None, 1}
        integers = [(self.tokens, 2), *([(self.lengths, 1)] if self.lengths else [])]
        for name, rank in integers:
            dims, dtype = signature.inputs[name].dims, signature.inputs[name].dtype
            if dtype not in (dtypes.int32, dtypes.int64) or dims is None or len(dims) != rank or dims[0] not in rows:
                raise _unfit(f"input {name!r}: {dtype.name} {dims}", f"int32 or int64 of {rank} axes, any rows")
        counts = (signature.inputs[self.tokens].dims or (None,))[-1]
        if counts not in (None, 1):
            raise _unfit(f"{counts} tokens a row", "one token, or any number")
        logits = signature.outputs[self.logits]
        if not logits.dtype.is_floating or logits.dims is None or len(logits.dims) != 2 or logits.dims[0] not in rows:
            raise _unfit(f"output {self.logits!r}: {logits.dtype.name} {logits.dims}", "floats [rows, vocabulary]")
        for state in self.states:
            _check_state(state, signature, rows)


def _check_state(state: TokenState, signature: Signature, rows: set[int | None]) -> None:
    check_kind(state, TokenState, "a state of a token loop", "a TokenState")
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
