"""The bodies of the APIs that clients speak, read natively: no translation from one to another (floor 1). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from prefixpilot.apis.base import Api
from prefixpilot.apis.chat import Chat
from prefixpilot.apis.completions import Completions
from prefixpilot.apis.messages import Messages
from prefixpilot.apis.responses import Responses

CHAT: Final[Api] = Chat()
COMPLETIONS: Final[Api] = Completions()
RESPONSES: Final[Api] = Responses()
MESSAGES: Final[Api] = Messages()

APIS: Final[tuple[Api, ...]] = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)

API_OF_PATH: Final[Mapping[bytes, Api]] = MappingProxyType({path: api for api in APIS for path in api.paths})
"""The API of a request target without query, as it stands on the wire."""

API_OF_NAME: Final[Mapping[str, Api]] = MappingProxyType({api.name: api for api in APIS})

__all__ = ["API_OF_NAME", "API_OF_PATH", "APIS", "CHAT", "COMPLETIONS", "MESSAGES", "RESPONSES", "Api"]
