"""Puts the tenant's ``cache_salt`` into a body, every other character of which stays as it was."""

from __future__ import annotations

from prefixpilot.errors import InvalidInputError
from prefixpilot.jsontext import JsonText, NoObjectError, SetMember, UnreadableError
from prefixpilot.proxy.call import Call, RefusedError, is_encoded, unfold
from prefixpilot.proxy.tenants import SALT, Tenants
from prefixpilot.proxy.wire import headers as h


def salted(tenants: Tenants, call: Call, max_bytes: int) -> Call:
    """The call with its tenant's salt in its body, and headers that describe that body. O(bytes).

    A body that is no object is left to the engine to refuse.

    Raises:
        RefusedError: 400 for a body that cannot be read, or has the field twice: it would reach the engine unsalted.
    """
    try:
        source = JsonText.read(unfold(call, max_bytes))
        if (SALT,) in source.repeats():
            raise UnreadableError(f"has {SALT} twice")
        salt = tenants.salt(call.tenant, source.value)
        body = call.body if salt is None else source.edited([SetMember((), SALT, salt)])
    except NoObjectError:
        return call
    except (UnreadableError, InvalidInputError) as error:
        message = f"body: {error}, so that its {SALT} cannot be set; send one JSON object in UTF-8"
        raise RefusedError(400, message, "invalid_request_error", SALT, "invalid_value") from None
    gone = (b"content-length", *((b"content-encoding",) if is_encoded(call) else ()))
    return Call(h.without(call.headers, gone), body, call.api, call.received, call.tenant, call.request_id)
