"""Parsed einsum equations: the shape function, the gradient and the kernel all work on labels, not on text.

A label is a letter of the equation. For a dimension under an ellipsis it is a negative int that counts dimensions from
the right, so that the ellipses of several operands align as in broadcasting.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import TypeAlias

from aioflow.errors import InvalidArgumentError

Label: TypeAlias = str | int
ELLIPSIS = "..."


@dataclass(frozen=True, slots=True)
class Equation:
    """A parsed equation.

    Attributes:
        terms: For each operand a tuple of letters, with at most one "...".
        output: The same for the output.
    """

    terms: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]

    def __str__(self) -> str:
        return ",".join("".join(t) for t in self.terms) + "->" + "".join(self.output)

    def labels(self, ranks: tuple[int | None, ...]) -> list[tuple[Label, ...] | None]:
        """Return the labels of each operand's dimensions, given their ranks.

        The labels are None for an operand with an ellipsis and unknown rank.

        Raises:
            InvalidArgumentError: an operand has the wrong rank.
        """
        return [self._expand(term, rank) for term, rank in zip(self.terms, ranks, strict=True)]

    def output_labels(self, operands: list[tuple[Label, ...]]) -> tuple[Label, ...]:
        """Return the labels of the output's dimensions. Its ellipsis is as long as the longest of the operands."""
        longest = max((sum(isinstance(x, int) for x in labels) for labels in operands), default=0)
        # Labels −longest … −1: an ellipsis counts from the right, so shorter ones align with its end.
        spread: tuple[Label, ...] = tuple(range(-longest, 0))
        found: list[Label] = []
        for item in self.output:
            found.extend(spread if item == ELLIPSIS else (item,))
        return tuple(found)

    def _expand(self, term: tuple[str, ...], rank: int | None) -> tuple[Label, ...] | None:
        letters = len(term) - (ELLIPSIS in term)
        if ELLIPSIS not in term:
            if rank is not None and rank != letters:
                raise _wrong_rank(term, f"rank {letters}", rank)
            return term
        if rank is None:
            return None
        if rank < letters:
            raise _wrong_rank(term, f"rank >= {letters}", rank)
        at = term.index(ELLIPSIS)
        # An ellipsis of rank − letters dimensions; of none if the letters cover all.
        return (*term[:at], *range(letters - rank, 0), *term[at + 1 :])


def _wrong_rank(term: tuple[str, ...], expected: str, rank: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the operand of {''.join(term)!r} has the wrong rank", expected=expected, actual=f"rank {rank}"
    )


def parse_equation(text: str, count: int) -> Equation:
    """Parse an equation such as "ij,jk->ik".

    Without "->" the output has the ellipsis, if there is one, then the letters that occur once, in alphabetical order.

    Args:
        text: The equation.
        count: The number of operands that it must have.

    Raises:
        InvalidArgumentError: it is malformed, or has another number of operands.
    """
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = tuple(_read_term(part, text) for part in left.split(","))
    if len(terms) != count:
        raise InvalidArgumentError(
            f"the equation {text!r} has {len(terms)} operands", expected=count, actual=len(terms)
        )
    output = _read_term(right, text) if arrow else _implied_output(terms)
    unknown = sorted(set(output).difference(*terms))
    if unknown:
        raise InvalidArgumentError(
            f"the output of {text!r} has a label that no operand has", expected="labels of the operands", actual=unknown
        )
    return Equation(terms, output)


def _read_term(part: str, text: str) -> tuple[str, ...]:
    # Only the first "..." is cut out, so that dots of a second one are rejected as letters below.
    head, dots, tail = part.partition(ELLIPSIS)
    for letter in head + tail:
        if letter not in string.ascii_letters:
            raise InvalidArgumentError(
                f"{text!r} is not an equation", expected='letters, ",", "->" and one "..." per operand', actual=letter
            )
    return (*head, ELLIPSIS, *tail) if dots else tuple(head)


def _implied_output(terms: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    every = [letter for term in terms for letter in term if letter != ELLIPSIS]
    # Letters that occur twice are summed, also within one term, as in a trace.
    once = sorted(letter for letter in set(every) if every.count(letter) == 1)
    return ((ELLIPSIS,) if any(ELLIPSIS in t for t in terms) else ()) + tuple(once)
