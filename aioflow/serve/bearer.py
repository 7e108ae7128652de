"""Authentication by a bearer token, for every transport."""

from __future__ import annotations

import hmac
from typing import Final

from aioflow.errors import InvalidArgumentError, UnauthenticatedError

_SCHEME: Final = b"bearer"


class Bearer:
    """A check of the token in requests.

    Args:
        token: The token; None if no authentication is required.

    Raises:
        InvalidArgumentError: the token is empty, so a request without a token would pass.
    """

    def __init__(self, token: str | None) -> None:
        if token is not None and not token:
            raise InvalidArgumentError("the token is empty", expected="a token, or None for nothing", actual="''")
        self._token = None if token is None else token.encode()

    def check(self, authorization: bytes) -> None:
        """Raise UnauthenticatedError unless `authorization` is `Bearer` and the token. Compares in constant time."""
        if self._token is None:
            return
        # The name of a scheme is case-insensitive (RFC 7235); the token is not.
        scheme, _, token = authorization.partition(b" ")
        is_bearer = scheme.lower() == _SCHEME
        # RFC 7235 allows several spaces before the token.
        if not hmac.compare_digest(token.strip(b" ") if is_bearer else b"", self._token):
            said = "this is not the token" if is_bearer else "a token is needed"
            raise UnauthenticatedError(said, expected="Authorization: Bearer TOKEN")
