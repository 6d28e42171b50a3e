"""The door to what all clients share: a bearer token, if one is set."""

from __future__ import annotations

import hmac

from prefixpilot.proxy.call import RefusedError
from prefixpilot.proxy.configuration import Secret
from prefixpilot.proxy.wire import headers as h


def check_admin(token: Secret | None, headers: h.RawHeaders) -> None:
    """Let a request through if no token is set, or if it brings that one. The comparison takes the same time for all.

    Raises:
        RefusedError: 401.
    """
    if token is None:
        return
    scheme, _, given = (h.get(headers, b"authorization") or "").partition(" ")
    right = hmac.compare_digest(given.strip().encode("latin-1"), token.data)
    if not right or scheme.lower() != "bearer":
        message = "this path needs the admin token: Authorization: Bearer TOKEN"
        challenge = ((b"www-authenticate", b"Bearer"),)
        raise RefusedError(401, message, "authentication_error", "Authorization", "invalid_api_key", challenge)
