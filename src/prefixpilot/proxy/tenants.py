"""Whose request it is: one resolver for all paths. And the salt that keeps the KV caches of tenants apart."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from prefixpilot.core import TenantId
from prefixpilot.proxy.call import MAX_ID_CHARS, RefusedError
from prefixpilot.proxy.settings import TenantSettings
from prefixpilot.proxy.wire.headers import RawHeaders

SALT: Final = "cache_salt"
"""Name of the body's field, in vLLM and in SGLang."""

_KEY_HEADERS: Final = (b"x-api-key", b"api-key")


class Tenants:
    """Says whose a request is, by its headers and by who sent it. Keeps nothing of them.

    A key that is in the table decides. Then the header that a gateway sets; from a peer that is not trusted it is
    refused, not overlooked. Then the default, unless a tenant is required.
    """

    def __init__(self, settings: TenantSettings, default: TenantId) -> None:
        self._settings = settings
        self._default = default
        self._header = None if settings.header is None else settings.header.lower().encode("ascii")
        self._peers = tuple(ipaddress.ip_network(peer) for peer in settings.trusted_peers)

    def of(self, headers: RawHeaders, peer: str | None) -> TenantId:
        """The tenant of a request.

        Args:
            headers: the client's, names in lower case.
            peer: address of the connection's other end; ``None`` if it has none.

        Raises:
            RefusedError: 401 if no tenant is known and one is required, or if keys of two tenants come; 403 for the
                header from a peer that is not trusted; 400 for one that names no tenant, or two.
        """
        if not self._settings.distinguishes:
            return self._default
        named = self._named(headers, peer)
        owners = sorted({self._settings.keys[digest] for digest in _digests(headers) if digest in self._settings.keys})
        if len(owners) > 1:
            raise _unauthorized("the request carries keys of two tenants; send one key")
        if owners:
            return TenantId(owners[0])
        if named is not None:
            return TenantId(named)
        if self._settings.required:
            raise _unauthorized("the request carries no key that is known here; send yours as a bearer token")
        return self._default

    def _named(self, headers: RawHeaders, peer: str | None) -> str | None:
        values = [value.decode("latin-1").strip() for name, value in headers if name == self._header]
        if not values:
            return None
        name = self._settings.header
        if not self._trusts(peer):
            message = f"{name} is not taken from this address; leave it out, or add the address to trusted_peers"
            raise RefusedError(403, message, "invalid_request_error", name, "not_trusted")
        if len(values) > 1 or not values[0] or len(values[0]) > MAX_ID_CHARS:
            message = f"{name}: must name one tenant, in at most {MAX_ID_CHARS} characters"
            raise RefusedError(400, message, "invalid_request_error", name, "invalid_value")
        return values[0]

    def _trusts(self, peer: str | None) -> bool:
        try:
            address = ipaddress.ip_address(peer or "")
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._peers)

    def salt(self, tenant: TenantId, body: Mapping[str, Any]) -> str | None:
        """``cache_salt`` to send with a body, 64 hex digits; ``None`` if none is asked for.

        An HMAC of the tenant and of the client's own salt, each with its length before it: no tenant reaches the KV
        cache of another, whatever salt it sends, and what a client keeps apart by salts of its own stays apart.
        """
        secret = self._settings.cache_salt_secret
        if secret is None:
            return None
        own = body.get(SALT)
        parts = [tenant] if own is None else [tenant, own if isinstance(own, str) else json.dumps(own, sort_keys=True)]
        mac = hmac.new(secret.data, digestmod=hashlib.sha256)
        for part in parts:
            data = part.encode("utf-8", "surrogatepass")
            mac.update(len(data).to_bytes(8, "big") + data)
        return mac.hexdigest()


def _digests(headers: RawHeaders) -> Iterator[str]:
    """SHA-256 of each key that a request carries."""
    for name, value in headers:
        scheme, _, token = value.partition(b" ")
        if name == b"authorization" and scheme.lower() == b"bearer":
            yield hashlib.sha256(token.strip()).hexdigest()
        elif name in _KEY_HEADERS:
            yield hashlib.sha256(value.strip()).hexdigest()


def _unauthorized(message: str) -> RefusedError:
    return RefusedError(
        401, message, "authentication_error", None, "invalid_api_key", ((b"www-authenticate", b"Bearer"),)
    )
