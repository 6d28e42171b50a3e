"""The description of our own paths, and of what we add to the four APIs, as OpenAPI 3.1 (``GET /openapi.json``).

What the four APIs are is described by those whose they are. Here stands what this proxy reads of them and may answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from prefixpilot import __version__
from prefixpilot.apis import APIS

_ID: Final = {"type": "string", "minLength": 1, "maxLength": 200}
_COUNT: Final = {"type": "integer", "minimum": 0}
_UNKNOWN_COUNT: Final = {"type": ["integer", "null"], "minimum": 0}
_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": 999999999}
_COUNTS: Final = {"type": "object", "additionalProperties": _COUNT}
_STATE: Final = {"enum": ["EXACT", "DEGRADED", "UNKNOWN"]}

_SCHEMAS: Final[Mapping[str, Any]] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    },
    "ContextBlocks": {
        "type": "array",
        "description": "Documents, most relevant first. The proxy puts them into the prompt and takes the key out.",
        "items": {
            "oneOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "required": ["text"],
                    "properties": {
                        "text": {"type": "string"},
                        "id": {"type": "string"},
                        "title": {"type": "string"},
                    },
                },
            ]
        },
    },
    "Ready": {
        "type": "object",
        "required": ["ready", "engine", "missing", "degraded"],
        "properties": {
            "ready": {"type": "boolean"},
            "engine": {"type": "string"},
            "missing": {"type": "array", "items": {"type": "string"}},
            "degraded": {
                "type": "array",
                "items": {"type": "string"},
                "description": "what does not keep requests from being served",
            },
            "engines": {
                "type": "array",
                "description": "of several engines, how each stands",
                "items": {
                    "type": "object",
                    "required": ["engine", "fit", "drained"],
                    "properties": {
                        "engine": {"type": "string"},
                        "fit": {"type": "boolean"},
                        "drained": {"type": "boolean"},
                    },
                },
            },
        },
    },
    "Stats": {
        "type": "object",
        "required": ["uptime_s", "sizes", "requests", "fail_opens", "annotations", "treated", "cache", "conversations"],
        "properties": {
            "uptime_s": {"type": "number", "minimum": 0},
            "sizes": _COUNTS,
            "requests": _COUNTS,
            "fail_opens": _COUNTS,
            "annotations": _COUNTS,
            "conversations": _COUNTS,
            "treated": _COUNTS,
            "volatile_changes": _COUNTS,
            "engine_cache": {
                "type": "object",
                "required": ["state", "followed"],
                "description": "how the engine's cache is followed, what was predicted of it, and why it was otherwise",
                "properties": {
                    "state": _STATE,
                    "followed": {"type": "boolean"},
                    "provider": {"type": "string", "description": "whose cache it is, if a hosted provider's"},
                },
            },
            "cache": {
                "type": "object",
                "required": ["answers_known", "answers_unknown", "cached_tokens", "hit_rate"],
                "properties": {
                    "answers_known": {**_COUNT, "description": "that told how many tokens were cached"},
                    "answers_unknown": {**_COUNT, "description": "that did not"},
                    "prompt_tokens": _UNKNOWN_COUNT,
                    "cached_tokens": _UNKNOWN_COUNT,
                    "hit_rate": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
                    "predicted_cached_tokens": _COUNT,
                    "replaced_tokens": _COUNT,
                    "annotation_tokens": _COUNT,
                },
            },
        },
    },
    "Plan": {
        "type": "object",
        "required": ["request_id", "mode", "replaced"],
        "description": "of a request with blocks: blocks and labels; of any other: what was moved, saved and changed",
        "properties": {
            "request_id": {"type": "string"},
            "mode": {"type": "string"},
            "blocks": _COUNT,
            "prefix_len": _UNKNOWN_COUNT,
            "predicted_cached_tokens": _UNKNOWN_COUNT,
            "replaced": _COUNT,
            "labels": {"type": "array", "items": {"type": "object"}},
            "moved": _COUNT,
            "saved_tokens": {"type": "integer"},
            "restored": _COUNT,
            "changed": _COUNT,
            "cache": {"enum": ["exact", "degraded", "unknown"], "description": "how the engine's cache was known"},
            "engine": {"type": "object", "description": "cached tokens predicted and reported, once they are known"},
            "changes": {"type": "array", "items": {"type": "object", "required": ["rule", "pointer", "span", "what"]}},
        },
    },
    "RequestIds": {
        "type": "object",
        "required": ["request_ids"],
        "properties": {"request_ids": {"type": "array", "items": {"type": "string"}}},
    },
    "Standing": {
        "type": "object",
        "required": ["engine", "url", "fit", "drained", "in_flight", "holds_for"],
        "properties": {
            "engine": _COUNT,
            "url": {"type": "string"},
            "fit": {"type": "boolean"},
            "drained": {"type": "boolean"},
            "in_flight": {**_COUNT, "description": "requests of this proxy under way there; 0: none is"},
            "holds_for": {"type": "string", "description": "this proxy alone, or all that share a store"},
        },
    },
    "Evicted": {"type": "object", "required": ["evicted"], "properties": {"evicted": _COUNT}},
    "Reset": {
        "type": "object",
        "required": ["requests", "conversations", "plans", "forms"],
        "properties": {"requests": _COUNT, "conversations": _COUNT, "plans": _COUNT, "forms": _COUNT},
    },
}

_HEADERS: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    ("X-Request-Id", "a name of the request, kept with its plan", {"type": "string", "maxLength": 200}),
    ("X-PrefixPilot-Conversation", "its conversation: documents of earlier turns stand in it again", _ID),
    ("X-PrefixPilot-Mode", "what is done to this request", {"enum": ["on", "off", "shadow", "explain"]}),
    (
        "X-PrefixPilot-Max-Displacement",
        "how many places a block may be moved",
        {"type": "integer", "minimum": 0, "maximum": 999999999},
    ),
)


def document() -> dict[str, Any]:
    """The whole description; the caller may change it."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "PrefixPilot",
            "version": __version__,
            "description": "Paths that are not here are the engine's: they are passed on untouched.",
        },
        "paths": {**_own_paths(), **{api.paths[0].decode("ascii"): _api_path(api.name) for api in APIS}},
        "components": {
            "schemas": deepcopy(_SCHEMAS),
            "securitySchemes": {"admin": {"type": "http", "scheme": "bearer"}},
        },
    }


def _own_paths() -> dict[str, Any]:
    return {
        "/healthz": {"get": _open("healthz", "Whether the proxy runs", {"200": _json("It does", {"type": "object"})})},
        "/readyz": {
            "get": _open(
                "readyz",
                "Whether requests can be served, and what is missing",
                {"200": _json("They can", _ref("Ready")), "503": _json("They cannot", _ref("Ready"))},
            )
        },
        "/openapi.json": {"get": _open("openapi", "This description", {"200": _json("It", {"type": "object"})})},
        "/metrics": {"get": _admin("metrics", "Metrics for Prometheus", {"200": _text("Text format 0.0.4")})},
        "/stats": {"get": _admin("stats", "Counts, sizes and hit rates", {"200": _json("They", _ref("Stats"))})},
        "/plans/{request_id}": {
            "get": _admin(
                "plan",
                "How a recent request was planned: its labels and places, without texts",
                {"200": _json("The plan", _ref("Plan")), "404": _error("No such plan is kept")},
                parameters=[_parameter("request_id", "path", "the request's X-Request-Id", _ID)],
            )
        },
        "/evict": {
            "post": _admin(
                "evict",
                "Requests whose prefix the engine has evicted",
                {
                    "200": _json("How many were in the index", _ref("Evicted")),
                    "400": _error("No such list"),
                    "413": _error("A body of more than 16 MiB"),
                },
                requestBody=_body(_ref("RequestIds")),
            )
        },
        "/reset": {
            "post": _admin(
                "reset",
                "Forget everything: the index, all conversations, all plans, all forms",
                {
                    "200": _json("How much was forgotten", _ref("Reset")),
                    "413": _error("A body of more than 16 MiB"),
                    "503": _error("Nothing is used any more, but some may still be on the disk"),
                },
            )
        },
        "/engines/{engine}/drain": {"post": _stand("drain", "Take an engine out: it gets no new requests")},
        "/engines/{engine}/resume": {"post": _stand("resume", "Take an engine in again")},
        "/conversations/{conversation_id}": {"delete": _forget()},
    }


def _stand(name: str, summary: str) -> dict[str, Any]:
    refused = {"409": _error("No other engine would be left")} if name == "drain" else {}
    return _admin(
        f"{name}_engine",
        summary,
        {
            "200": _json("How it stands now", _ref("Standing")),
            "404": _error("No such engine"),
            "503": _error("Nothing was done: the store that proxies share does not answer"),
            **refused,
        },
        parameters=[_parameter("engine", "path", "its number, from 0", _NUMBER)],
    )


def _forget() -> dict[str, Any]:
    return _open(
        "forget_conversation",
        "Forget a conversation of this client: of the same tenant and the same credentials",
        {
            "204": {"description": "It is forgotten"},
            "404": _error("No such conversation is kept"),
            "403": _error("The tenant's header, from an address that is not trusted"),
            "503": _error("It is not used any more, but may still be on the disk"),
            "400": _error("No id"),
            "401": _error("Whose it is must be known, and is not"),
        },
        parameters=[_parameter("conversation_id", "path", "as in X-PrefixPilot-Conversation", _ID)],
    )


def _api_path(name: str) -> dict[str, Any]:
    body = {"type": "object", "properties": {"context_blocks": _ref("ContextBlocks")}}
    parameters = [_parameter(header, "header", text, schema) for header, text, schema in _HEADERS]
    plan = {
        "X-PrefixPilot-Plan": {"description": "what was done, as JSON", "schema": {"type": "string"}},
        "X-PrefixPilot-Engine": {"description": "which of several engines answered", "schema": {"type": "integer"}},
    }
    answers = {
        "200": {"description": "The engine's answer", "headers": plan},
        "400": _error("A header or context_blocks that cannot be used"),
        "401": _error("Whose it is must be known, and is not"),
        "403": _error("The tenant's header, from an address that is not trusted"),
        "408": _error("The client stopped sending"),
        "413": _error("A body that must be read, and is too long"),
        "429": _error("Too many requests of this tenant are under way"),
        "502": _error("The engine cannot be reached"),
        "503": _error("Too many requests are under way, the proxy is ending, or no engine is fit"),
        "504": _error("The engine did not answer in time"),
        "default": {"description": "The engine's own answer, as it came"},
    }
    operation = _operation(name, f"The engine's {name} API, with context_blocks", answers)
    return {"post": {**operation, "parameters": parameters, "requestBody": _body(body)}}


def _operation(name: str, summary: str, responses: Mapping[str, Any]) -> dict[str, Any]:
    return {"operationId": name, "summary": summary, "responses": dict(responses)}


def _open(name: str, summary: str, responses: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {**_operation(name, summary, responses), **more}


def _admin(name: str, summary: str, responses: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """An operation that asks for the admin token, where one is set."""
    refused = _error("The admin token is set, and was not sent")
    return {**_operation(name, summary, {**responses, "401": refused}), "security": [{}, {"admin": []}], **more}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _text(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"text/plain": {"schema": {"type": "string"}}}}


def _error(description: str) -> dict[str, Any]:
    return _json(description, _ref("Error"))


def _body(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _parameter(name: str, where: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "description": description, "schema": schema}
