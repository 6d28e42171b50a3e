"""Whose request it is, who may use our own paths, and how many requests may be under way."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefixpilot.core import TenantId
from prefixpilot.errors import ConfigError
from prefixpilot.proxy.admin import check_admin
from prefixpilot.proxy.call import RefusedError
from prefixpilot.proxy.configuration import Secret
from prefixpilot.proxy.in_flight import InFlight
from prefixpilot.proxy.settings import TenantSettings
from prefixpilot.proxy.tenants import Tenants

SECRET = Secret("a secret of some length")
LOOPBACK = "127.0.0.1"


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def tenants(**settings: Any) -> Tenants:
    return Tenants(TenantSettings(**settings), TenantId("house"))


def refusal(who: Tenants, headers: list[tuple[bytes, bytes]], peer: str | None = LOOPBACK) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        who.of(headers, peer)
    return caught.value


KEYS = {hashed("key of a"): "a", hashed("key of b"): "b"}


class TestKeys:
    @pytest.mark.parametrize(
        "header",
        [
            (b"authorization", b"Bearer key of a"),
            (b"authorization", b"bearer  key of a "),
            (b"x-api-key", b"key of a"),
            (b"api-key", b"key of a"),
        ],
    )
    def test_a_key_that_is_known_decides(self, header: tuple[bytes, bytes]) -> None:
        assert tenants(keys=KEYS).of([header], None) == "a"

    def test_others_are_of_the_house_unless_one_is_required(self) -> None:
        for headers in ([], [(b"authorization", b"Bearer other")], [(b"authorization", b"Basic key of a")]):
            assert tenants(keys=KEYS).of(headers, LOOPBACK) == "house"
            refused = refusal(tenants(keys=KEYS, required=True), headers)
            assert (refused.status, refused.code) == (401, "invalid_api_key")
            assert refused.headers == [(b"www-authenticate", b"Bearer")]
            assert "other" not in refused.message

    def test_keys_of_two_tenants_are_refused(self) -> None:
        both = [(b"authorization", b"Bearer key of a"), (b"x-api-key", b"key of b")]
        assert refusal(tenants(keys=KEYS), both).status == 401
        same = [(b"authorization", b"Bearer key of a"), (b"x-api-key", b"key of a")]
        assert tenants(keys=KEYS).of(same, None) == "a"

    def test_without_keys_and_header_all_are_of_the_house(self) -> None:
        assert tenants(required=True).of([(b"x-tenant", b"b")], None) == "house"


class TestHeader:
    def test_a_trusted_peer_names_the_tenant(self) -> None:
        who = tenants(header="X-Tenant", trusted_peers=("10.0.0.0/8", "::1"))
        for peer in ("10.1.2.3", "::1", "::ffff:10.9.9.9"):
            assert who.of([(b"x-tenant", b"blue")], peer) == "blue"

    @pytest.mark.parametrize("peer", ["192.168.0.1", None, "unix:/a", "::2", ""])
    def test_from_another_peer_it_is_refused_even_with_a_key(self, peer: str | None) -> None:
        who = tenants(header="X-Tenant", trusted_peers=("10.0.0.0/8", "::1"), keys=KEYS)
        assert refusal(who, [(b"x-tenant", b"blue")], peer).status == 403
        assert refusal(who, [(b"x-tenant", b"a"), (b"x-api-key", b"key of a")], peer).status == 403

    @pytest.mark.parametrize("values", [[b""], [b" "], [b"a", b"b"], [b"a", b"a"], [b"x" * 201]])
    def test_a_header_that_names_no_tenant_or_two_is_refused(self, values: list[bytes]) -> None:
        headers = [(b"x-tenant", value) for value in values]
        assert refusal(tenants(header="x-tenant"), headers).status == 400

    def test_a_known_key_goes_before_the_header(self) -> None:
        who = tenants(header="x-tenant", keys=KEYS)
        assert who.of([(b"x-tenant", b"blue"), (b"x-api-key", b"key of b")], LOOPBACK) == "b"

    def test_absent_it_is_the_house_or_refused(self) -> None:
        assert tenants(header="x-tenant").of([], "8.8.8.8") == "house"
        assert refusal(tenants(header="x-tenant", required=True), []).status == 401


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "named"),
        [
            ({"keys": {"abc": "a"}}, "keys"),
            ({"keys": {hashed("k"): " "}}, "keys"),
            ({"header": "a:b"}, "header"),
            ({"trusted_peers": ("10.0.0.1/8",)}, "trusted_peers"),
            ({"max_in_flight": 0}, "max_in_flight"),
            ({"cache_salt_secret": Secret("short")}, "cache_salt_secret"),
        ],
    )
    def test_what_cannot_be_used_is_refused(self, settings: dict[str, Any], named: str) -> None:
        with pytest.raises(ConfigError) as caught:
            TenantSettings(**settings)
        assert caught.value.field == named
        assert "short" not in caught.value.reason.replace("too short", "")


names = st.text(max_size=5)


class TestSalt:
    def test_none_without_a_secret(self) -> None:
        assert tenants().salt(TenantId("a"), {}) is None

    @given(names, names, st.none() | names, st.none() | names)
    def test_equal_exactly_for_the_same_tenant_and_the_same_salt_of_the_client(
        self, a: str, b: str, salt_a: str | None, salt_b: str | None
    ) -> None:
        who = tenants(cache_salt_secret=SECRET)
        first, second = who.salt(TenantId(a), {"cache_salt": salt_a}), who.salt(TenantId(b), {"cache_salt": salt_b})
        assert (first == second) == ((a, salt_a) == (b, salt_b))

    def test_it_does_not_show_what_it_is_made_of(self) -> None:
        salt = tenants(cache_salt_secret=SECRET).salt(TenantId("a"), {})
        assert salt is not None and len(salt) == 64 and int(salt, 16)
        assert salt != tenants(cache_salt_secret=Secret("another secret, as long")).salt(TenantId("a"), {})

    def test_a_salt_that_is_no_text_is_overwritten_too(self) -> None:
        who = tenants(cache_salt_secret=SECRET)
        assert who.salt(TenantId("a"), {"cache_salt": 1}) != who.salt(TenantId("b"), {"cache_salt": 1})


class TestAdmin:
    def test_without_a_token_the_door_is_open(self) -> None:
        check_admin(None, [])

    @pytest.mark.parametrize("value", [b"Bearer a secret of some length", b"bearer a secret of some length"])
    def test_the_token_opens_it(self, value: bytes) -> None:
        check_admin(SECRET, [(b"authorization", value)])

    @pytest.mark.parametrize(
        "value", [None, b"", b"Bearer ", b"Bearer a secret", b"Basic a secret of some length", b"Bearer \xff"]
    )
    def test_nothing_else_does(self, value: bytes | None) -> None:
        with pytest.raises(RefusedError) as caught:
            check_admin(SECRET, [] if value is None else [(b"authorization", value)])
        assert caught.value.status == 401
        assert (b"www-authenticate", b"Bearer") in caught.value.headers
        assert SECRET.value not in caught.value.message


class InFlightMachine(RuleBasedStateMachine):
    """Requests come and go; the specification is the list of those under way."""

    def __init__(self) -> None:
        super().__init__()
        self.counter = InFlight(4, 2)
        self.under_way: list[str] = []

    @rule(tenant=st.sampled_from("abc"))
    def comes(self, tenant: str) -> None:
        mine = self.under_way.count(tenant)
        try:
            self.counter.enter(TenantId(tenant))
        except RefusedError as refused:
            assert refused.status == (503 if len(self.under_way) >= 4 else 429)
            assert len(self.under_way) >= 4 or mine >= 2
            assert (b"retry-after", b"1") in refused.headers
        else:
            assert len(self.under_way) < 4 and mine < 2
            self.under_way.append(tenant)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def goes(self, data: st.DataObject) -> None:
        self.counter.leave(TenantId(self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))))

    @invariant()
    def adds_up(self) -> None:
        self.counter.check_invariants()
        assert len(self.counter) == len(self.under_way)


TestInFlight = InFlightMachine.TestCase
