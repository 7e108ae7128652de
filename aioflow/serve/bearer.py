"""The token that whoever asks must bring, on every transport."""

from __future__ import annotations

import hmac
from typing import Final

from aioflow.errors import InvalidArgumentError, UnauthenticatedError

__all__ = ["Bearer"]

_SCHEME: Final = b"bearer"


class Bearer:
    """Refuses whoever does not have the token.

    Args:
        token: None where nothing is needed.

    Raises:
        InvalidArgumentError: the token is empty: whoever brings none would have it.
    """

    def __init__(self, token: str | None) -> None:
        if token is not None and not token:
            raise InvalidArgumentError("the token is empty", expected="a token, or None for nothing", actual="''")
        self._token = None if token is None else token.encode()

    def check(self, authorization: bytes) -> None:
        """Raise UnauthenticatedError unless this is `Bearer` and the token; it is compared in constant time."""
        if self._token is None:
            return
        scheme, _, token = authorization.partition(b" ")
        is_bearer = scheme.lower() == _SCHEME
        if not hmac.compare_digest(token.strip(b" ") if is_bearer else b"", self._token):  # of spaces there may be more
            said = "this is not the token" if is_bearer else "a token is needed"
            raise UnauthenticatedError(said, expected="Authorization: Bearer TOKEN")
