"""Our OpenAPI description against the running proxy: schemathesis makes requests, and the answers must be as told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import checks

from prefixpilot import __version__
from prefixpilot.apis import API_OF_PATH
from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.proxy.configuration import Secret
from prefixpilot.proxy.openapi import document
from prefixpilot.proxy.settings import AdminSettings
from prefixpilot.testing import SimulatedEngine

from .support import fetch

TOKEN = "an admin token of some length"
ADMIN = {"Authorization": f"Bearer {TOKEN}"}
CHECKS: list[Any] = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
OURS = [(path, method) for path in document()["paths"] for method in document()["paths"][path]]
few = settings(
    max_examples=15,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    settings = {"port": 0, "drain_timeout": 2, "admin": AdminSettings(Secret(TOKEN))}
    with SimulatedEngine() as engine, serve_in_thread(ProxySettings(engine.base_url, **settings)) as proxy:  # type: ignore[arg-type]
        yield proxy.url


@pytest.mark.parametrize(("path", "method"), OURS, ids=lambda word: str(word))
def test_answers_are_as_described(url: str, path: str, method: str) -> None:
    operation = schemathesis.openapi.from_dict(document())[path][
        method.upper()
    ]  # schemathesis changes what it was given

    @few
    @given(data=st.data())
    def conforms(data: Any) -> None:
        case = data.draw(operation.as_strategy())
        response = case.call(base_url=url, headers=ADMIN, timeout=10)
        case.validate_response(response, checks=CHECKS)

    conforms()


def test_a_description_is_the_callers_own() -> None:
    first = document()
    first["components"]["schemas"]["Ready"]["properties"]["ready"]["type"] = "string"
    assert document()["components"]["schemas"]["Ready"]["properties"]["ready"]["type"] == "boolean"


@pytest.mark.parametrize(("path", "method"), OURS, ids=lambda word: str(word))
def test_the_token_is_asked_for_where_it_is_said(url: str, path: str, method: str) -> None:
    operation = document()["paths"][path][method]
    if b"/" + path.lstrip("/").encode() in API_OF_PATH:
        assert "security" not in operation
        return
    target = path.replace("{request_id}", "r1").replace("{conversation_id}", "c1").replace("{engine}", "0")
    refused = fetch(url, method.upper(), target, b"{}").status == 401
    assert refused == ("security" in operation)


def test_what_is_served_is_what_is_described(url: str) -> None:
    served = fetch(url, "GET", "/openapi.json").json()
    assert served == json.loads(json.dumps(document()))
    assert served["info"]["version"] == __version__


def test_each_operation_has_a_name_of_its_own_and_each_reference_a_target() -> None:
    text = json.dumps(document())
    names = [operation["operationId"] for path in document()["paths"].values() for operation in path.values()]
    assert len(set(names)) == len(names)
    for reference in {part.partition('"')[0] for part in text.split('"#/components/schemas/')[1:]}:
        assert reference in document()["components"]["schemas"]


def test_the_checks_can_fail(url: str) -> None:
    """The same run against a description that is wrong."""
    wrong = document()
    wrong["components"]["schemas"]["Ready"]["properties"]["ready"] = {"type": "string"}
    case = schemathesis.openapi.from_dict(wrong)["/readyz"]["GET"].Case()
    with pytest.raises(BaseExceptionGroup):
        case.validate_response(case.call(base_url=url, timeout=10), checks=CHECKS)
